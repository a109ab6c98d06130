"""The example that draws the proof: it trains, exports, compares, and no code differs."""

import pathlib
import subprocess
import sys

import pytest
from PIL import Image

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "plot_proof.py"


@pytest.mark.thorough
def test_no_code_of_the_picture_differs(tmp_path):
    picture = tmp_path / "proof.png"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"--output={picture}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert ": 0 codes differ" in done.stdout
    assert Image.open(picture).width > 1000
    assert [file.name for file in tmp_path.iterdir()] == ["proof.png"]
