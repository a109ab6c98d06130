"""The tables of the pages are those of the recorded outcomes."""

import pathlib

import pytest

from sat_tf.reproduction.record import read_outcomes, updated

REPOSITORY = pathlib.Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results" / "paper.csv"
PAGES = [
    page
    for page in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
    if "<!-- sat-tf paper table" in page.read_text(encoding="utf-8")
]


def test_the_pages_with_results_have_tables():
    assert {page.name for page in PAGES} >= {"experiments.md", "miniature.md", "recipes.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    # Otherwise: sat-tf paper table --results benchmarks/results/paper.csv --write PAGE
    assert updated(text, read_outcomes(RESULTS), str(page)) == text


def test_recorded_outcomes_have_a_commit_and_no_code_that_differs():
    for outcome in read_outcomes(RESULTS):
        assert outcome.commit
        assert not outcome.codes_differing
