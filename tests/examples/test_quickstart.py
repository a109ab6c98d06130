"""The notebook runs from top to bottom, and its committed outputs tell of no machine."""

import pathlib
import re

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = pathlib.Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
PATHS = re.compile(r"/(home|root|tmp|usr|work|Users)/|site-packages|[A-Z]:\\\\")


def _outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def _text(notebook):
    return "".join(str(output) for output in _outputs(notebook))


@pytest.fixture(scope="module")
def committed():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_every_cell_has_been_run_in_order(committed):
    counts = [cell.execution_count for cell in committed.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert "0 of " in _text(committed)


def test_the_outputs_are_short_and_tell_of_no_machine(committed):
    assert NOTEBOOK.stat().st_size < 64 * 1024
    assert not PATHS.search(_text(committed))
    assert {output.output_type for output in _outputs(committed)} == {"execute_result"}


@pytest.mark.thorough
def test_it_runs_from_top_to_bottom(committed, tmp_path):
    run = nbformat.from_dict(committed)
    for cell in run.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(run, timeout=600, kernel_name="python3", resources=resources).execute()
    assert re.search(r"<Certificate: 0 of [\d,]+ codes differ", _text(run))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"digits.tflite", "digits.json", "digits.html"}
