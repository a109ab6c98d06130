import dataclasses
import html
import os

import pytest

from sat_tf.messages import RunError
from sat_tf.reproduction.figures import library, run
from sat_tf.reproduction.figures.library import FIGURES
from tests.reproduction.figures.small import tables


@pytest.fixture
def figures(monkeypatch):
    """All figures with numbers that are made at once; those of seed 7 cannot be made."""

    def measure(name):
        def made(seed, advance):
            if seed == 7:
                raise KeyboardInterrupt
            advance(1.0)
            return tables()[name]

        return made

    made = {
        name: dataclasses.replace(figure, measure=measure(name)) for name, figure in FIGURES.items()
    }
    monkeypatch.setattr(library, "FIGURES", made)
    monkeypatch.setattr(run, "FIGURES", made)
    return made


@pytest.mark.thorough
def test_the_page_holds_every_printed_number_beside_ours(figures, tmp_path):
    told = []
    page = run.run(
        list(figures.values()), tmp_path, seed=0, done=lambda figure, *_: told.append(figure.name)
    )
    assert told == list(figures)
    text = html.unescape(page.read_text(encoding="utf-8"))
    for name, figure in figures.items():
        assert f'id="{name}"' in text
        assert f"{name}.csv" in text
        for claim in figure.compare(tables()[name]):
            assert claim.about in text
            assert claim.paper in text
    for printed in ("0.01", "0.04", "0.02", "0.026", "0.5", "2", "1", "1.3"):
        assert f">{printed}<" in text
    # One file, with nothing to load.
    assert 'src="data:image/svg+xml;base64,' in text
    assert "<script" not in text
    assert 'src="http' not in text


def test_the_page_keeps_figures_that_were_made_before(figures, tmp_path):
    run.run([figures["figure_s1"]], tmp_path, seed=0)
    page = run.run([figures["equation13"]], tmp_path, seed=0)
    text = page.read_text(encoding="utf-8")
    assert 'id="figure_s1"' in text
    assert 'id="equation13"' in text
    assert 'id="figure2a"' not in text


def test_an_interruption_leaves_whole_files_only(figures, tmp_path):
    run.run([figures["figure_s1"]], tmp_path, seed=0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        run.run([figures["figure_s1"], figures["equation13"]], tmp_path, seed=7)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_older_numbers_that_cannot_be_read_are_an_error_that_names_the_file(figures, tmp_path):
    run.run([figures["figure_s1"]], tmp_path, seed=0)
    (tmp_path / "figure_s1.csv").write_text("broken")
    with pytest.raises(RunError, match=r"figure_s1.csv: received a file that cannot be read"):
        run.run([figures["equation13"]], tmp_path, seed=0)
