"""A part of `benchmarks/campaign.py`, and the cases that it has found in the past."""

import pathlib

import pytest

from tests.campaign.cases import replayed
from tests.campaign.kinds import KINDS

_FINDINGS = pathlib.Path(__file__).parents[1] / "findings"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_cases_end_in_clear_errors_or_sound_results(kind, originals, tmp_path):
    found = []
    for seed in range(KINDS[kind].few):
        folder = tmp_path / str(seed)
        folder.mkdir()
        verdict = KINDS[kind].play(seed, folder)
        if verdict.is_finding:
            found.append(f"{kind} {seed}: {verdict.name}: {verdict.text}")
    assert not found


# The servers are those of the other cases, which know where the originals are from their beginning.
@pytest.mark.thorough
@pytest.mark.usefixtures("originals")
@pytest.mark.parametrize("case", sorted(_FINDINGS.glob("*/")), ids=lambda case: case.name)
def test_what_was_found_is_mended(case, tmp_path):
    verdict, expected = replayed(case, tmp_path)
    assert verdict.name == expected, verdict.text
