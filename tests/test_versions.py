"""The ranges of `pyproject.toml`, as the documentation has them, are those that were tried."""

import csv
import pathlib
import re
import tomllib

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_SETTINGS = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_PROJECT = _SETTINGS["project"]
with (_ROOT / "benchmarks" / "results" / "versions.csv").open(newline="") as _file:
    _ROWS = list(csv.DictReader(_file))
_COLUMNS = list(_ROWS[0])
# Those between are packages.
_PACKAGES = _COLUMNS[_COLUMNS.index("python") + 1 : _COLUMNS.index("system")]


def _parts(version):
    return [int(part) for part in version.split(".")]


@pytest.mark.parametrize("name", ["python", *_PACKAGES])
def test_a_range_ends_with_the_oldest_and_the_newest_version_that_passed(name):
    ranges = [f"python{_PROJECT['requires-python']}", *_PROJECT["dependencies"]]
    found = (re.fullmatch(rf"{name}>=([\d.]+),<([\d.]+)", words) for words in ranges)
    lowest, end = next(one.groups() for one in found if one)
    passed = sorted(_parts(row[name]) for row in _ROWS if row["result"] == "passed")
    lowest, end = _parts(lowest), _parts(end)
    assert passed[0][: len(lowest)] == lowest
    newest = passed[-1][: len(end)]
    assert [*newest[:-1], newest[-1] + 1] == end


def test_all_that_is_no_code_comes_with_the_package():
    patterns = _SETTINGS["tool"]["setuptools"]["package-data"]["sat_tf"]
    package = _ROOT / "sat_tf"
    packed = {path for words in patterns for path in package.glob(words)}
    files = {path for path in package.rglob("*") if path.is_file()}
    assert {path for path in files if path.suffix not in (".py", ".pyc")} <= packed
    assert package / "training" / "configs" / "folder.yaml" in packed


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_pages_to_start_from_name_the_ranges(page):
    text = (_ROOT / page).read_text(encoding="utf-8")
    assert "Python 3.11 to 3.13, TensorFlow 2.16 to 2.21" in text
