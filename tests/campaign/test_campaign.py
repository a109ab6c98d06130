"""A part of `benchmarks/campaign.py`, and the cases that it has found in the past."""

import json
import pathlib

import pytest

from tests.campaign.cases import played
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
    found = {}
    for seed in range(KINDS[kind].few):
        (tmp_path / str(seed)).mkdir()
        found[seed] = play(kind, seed, tmp_path / str(seed))
    assert not {seed: verdict for seed, verdict in found.items() if verdict.is_finding}


@pytest.mark.parametrize("case", sorted(_FINDINGS.glob("*/")), ids=lambda case: case.name)
def test_what_was_found_is_mended(case, tmp_path):
    kept = json.loads((case / "command.json").read_text())
    verdict = played(None, str(case), tmp_path, on=kept["on"])
    assert verdict.name == kept["expected"], verdict.text
