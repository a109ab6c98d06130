import csv
import re

import pytest

from sat_tf.reproduction.miniature.claims import CLAIMS
from sat_tf.reproduction.miniature.groups import SHORT
from sat_tf.reproduction.miniature.page import to_html, write_page
from sat_tf.reproduction.paper.record import add_outcomes, read_outcomes
from tests.reproduction.paper.fake import outcome

# What the short run gave once, and a second seed in which rescaling does not help.
TOP1 = dict(zip(SHORT, (58.25, 74.4, 19.613, 27.5, 35.787, 43.3), strict=True))


@pytest.fixture
def results(tmp_path):
    """A file of outcomes as a run records it."""
    path = tmp_path / "results.csv"
    add_outcomes(
        path,
        [
            outcome(row=row, seed=seed, top1=top1 + bonus, top5=99.0 - index, run=f"r{index}{seed}")
            for seed, bonus in ((0, 0.0), (1, 0.125))
            for index, (row, top1) in enumerate(TOP1.items())
        ],
    )
    return path


def _cells(page):
    return set(re.findall(r"<td[^>]*>(?:<[^>]+>)*([^<]*)", page))


def test_the_page_holds_every_number_of_the_file(results, tmp_path):
    cells = _cells(to_html(read_outcomes(results), tmp_path))
    with results.open(newline="") as file:
        for line in csv.DictReader(file):
            assert set(line.values()) <= cells | {""}


def test_every_claim_is_there_with_its_verdict(results, tmp_path):
    page = to_html(read_outcomes(results), tmp_path)
    for claim in CLAIMS:
        assert claim.text in page
        assert claim.source in page
        assert claim.printed in page
    assert page.count("✓ shows") == 5
    assert page.count("· not run") == len(CLAIMS) - 5
    assert "✗ does not show" not in page
    assert '<p class="verdict">5 of 5 claims of the paper show, 10 not run</p>' in page
    assert "+23.7 ± 0.0 (2 seeds)" in page


def test_what_does_not_show_is_said(tmp_path):
    top1 = {"glyphs/float/clamp": 70.0, "glyphs/float/clamp_constant": 60.0}
    page = to_html([outcome(row=row, top1=value) for row, value in top1.items()], tmp_path)
    assert "✗ does not show" in page
    assert "−10.0 (1 seed)" in page
    assert '<p class="verdict">0 of 1 claims of the paper show, 14 not run</p>' in page


def test_how_the_setting_was_chosen_is_said(tmp_path):
    page = to_html([], tmp_path)
    for words in ("<b>selected</b>", "last of five settings", "policy.detach_max", "Head"):
        assert words in page
    assert '<p class="verdict">not run</p>' in page


def test_the_page_loads_nothing(results, tmp_path):
    page = to_html(read_outcomes(results), tmp_path)
    assert not re.search(r"<script|<link|<img src=\"(?!data:)|url\(|https?:|@import", page)


def test_runs_with_other_settings_are_shown_alone_and_said_to_be_so(tmp_path):
    plain = outcome(row="glyphs/float/clamp", top1=12.25)
    tiny = outcome(row="glyphs/float/clamp", top1=33.5, changes="stages.float.steps=<2>")
    page = to_html([plain, tiny], tmp_path, "stages.float.steps=<2>")
    assert "33.5" in page
    assert "12.25" not in page
    assert "other settings than the page describes: stages.float.steps=&lt;2&gt;" in page
    assert "33.5" not in to_html([plain, tiny], tmp_path)


def test_rows_of_no_group_are_left_out(tmp_path):
    stray = outcome(row="glyphs_recipes/2bits/none", top1=12.25)
    assert "12.25" not in to_html([stray], tmp_path)


def test_the_page_is_written_whole(results, tmp_path):
    path = tmp_path / "index.html"
    write_page(path, read_outcomes(results), tmp_path)
    assert path.read_text() == to_html(read_outcomes(results), tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        write_page(tmp_path / "nowhere" / "index.html", [], tmp_path)
