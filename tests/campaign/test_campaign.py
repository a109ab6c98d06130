"""A part of `benchmarks/campaign.py`, and the cases that it has found in the past."""

import pathlib

import pytest

from tests.campaign.cases import replayed
from tests.campaign.kinds import KINDS, play
from tests.campaign.originals import prepare

_FINDINGS = pathlib.Path(__file__).parents[1] / "findings"
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module", autouse=True)
def _originals(tmp_path_factory):
    """Good files, which servers know from their beginning."""
    prepare(tmp_path_factory.mktemp("originals") / "files")


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_cases_end_in_clear_errors_or_sound_results(kind, tmp_path):
    found = []
    for seed in range(KINDS[kind].few):
        folder = tmp_path / str(seed)
        folder.mkdir()
        verdict = play(kind, seed, folder)
        if verdict.is_finding:
            found.append(f"{kind} {seed}: {verdict.name}: {verdict.text}")
    assert not found


@pytest.mark.parametrize("case", sorted(_FINDINGS.glob("*/")), ids=lambda case: case.name)
def test_what_was_found_is_mended(case, tmp_path):
    verdict, expected = replayed(case, tmp_path)
    assert verdict.name == expected, verdict.text
