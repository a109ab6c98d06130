"""A release says the truth of itself."""

import ast
import csv
import importlib
import pathlib
import re
import runpy
import subprocess
import sys
import tomllib

import pytest
import setuptools
import yaml

import sat_tf
from sat_tf import version
from tests.campaign.kinds import KINDS
from tests.versions import wheel

_ROOT = pathlib.Path(__file__).parents[1]
_SETTINGS = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_PROJECT = _SETTINGS["project"]
_WORKFLOWS = sorted((_ROOT / ".github" / "workflows").glob("*.yml"))


def _read(name):
    return (_ROOT / name).read_text(encoding="utf-8")


def _workflow(name):
    return yaml.safe_load(_read(f".github/workflows/{name}.yml"))


def test_the_long_description_leads_nowhere_that_is_not_there(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **words: given.update(words))
    convert = runpy.run_path(str(_ROOT / "setup.py"))["long_description"]
    pictures = "![a picture](docs/a.png)\n\n*What it\nshows.*\n\n"
    readme = "A [page](docs/b.md#part), [another\none](c.md), [the web](https://example.org/a).\n\n"
    found = convert(pictures + readme + "pip install .   # or '.[gpu]'\npip install '.[gpu]'")
    expected = "A page, another\none, [the web](https://example.org/a).\n\n"
    assert found == expected + "pip install sat-tf   # or '.[gpu]'\npip install 'sat-tf[gpu]'"
    text = given["long_description"]
    assert not re.search(r"\]\((?!https?:)", text)
    assert "<img" not in text
    assert "pip install sat-tf" in text
    assert "pip install ." not in text
    # All headings are left.
    assert re.findall(r"^#.*", text, re.M) == re.findall(r"^#.*", _read("README.md"), re.M)


def test_the_citation_and_the_changelog_are_of_this_version_and_of_the_paper():
    found = yaml.safe_load(_read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["version"] == sat_tf.__version__ == version.__version__
    first, second = re.findall(r"^## (.*)", _read("CHANGELOG.md"), re.M)[:2]
    assert (second if first == "Unreleased" else first) == sat_tf.__version__
    assert found["license"] == _PROJECT["license"]
    (paper,) = found["references"]
    assert paper["title"] == "Towards Efficient Training for Neural Network Quantization"
    assert [one["family-names"] for one in paper["authors"]] == ["Jin", "Yang", "Liao"]


def test_each_promise_of_the_threat_model_is_held_by_tests_that_are_there():
    rows = [line for line in _read("SECURITY.md").splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 8
    for row in rows:
        held_by = re.findall(r"`(tests/[^`]+)`", row.split("|")[3])
        assert held_by, row
        for path in held_by:
            # A table of messages has a test for each of its rows.
            assert (">>> " if path.endswith(".txt") else "def test_") in _read(path), path
        kinds = re.findall(r"`(\w+)`", row.split("|")[4])
        assert kinds, row
        assert set(kinds) <= set(KINDS), row


def test_python_versions_are_the_same_in_metadata_workflows_and_pages_to_start_from():
    low, end = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", _PROJECT["requires-python"]).groups()
    versions = [f"3.{minor}" for minor in range(int(low), int(end))]
    heads = [words.rsplit(" ", 1)[1] for words in _PROJECT["classifiers"] if ":: 3." in words]
    assert heads == versions
    matrix = _workflow("tests")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == versions
    for page in ("README.md", "docs/index.md"):
        assert "Python 3.11 to 3.13, TensorFlow 2.16 to 2.21" in _read(page)


def test_workflows_run_what_contributors_run_without_secrets_and_only_the_upload_may_write():
    targets = set(re.findall(r"^([a-z-]+):", _read("Makefile"), re.M))
    for path in _WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        used = re.findall(r"run: make ([a-z-]+)", text)
        assert used, path.name
        assert set(used) <= targets, path.name
        assert "secrets." not in text
        assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    upload = _workflow("publish")["jobs"]["upload"]
    assert upload["permissions"] == {"id-token": "write"}
    assert upload["needs"] == "build"


def test_forms_of_issues_are_whole():
    for path in set((_ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        names = [field["id"] for field in form.get("body", ())]
        assert path.stem == "config" or (form["name"] and form["description"] and names)
        assert len(set(names)) == len(names)


def test_a_wheel_with_tests_or_without_a_part_is_found():
    about = ["METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"]
    whole = [*wheel.of_package(), *(f"sat_tf-0.2.0.dist-info/{name}" for name in about)]
    assert wheel.problems(whole) == []
    assert wheel.problems([*whole, "tests/test_release.py"]) == [
        "tests/test_release.py: is not the package's"
    ]
    # All that is no code comes with the package.
    patterns = _SETTINGS["tool"]["setuptools"]["package-data"]["sat_tf"]
    package = _ROOT / "sat_tf"
    packed = {path for words in patterns for path in package.glob(words)}
    files = {path for path in package.rglob("*") if path.is_file()}
    names = {f"sat_tf/{path.relative_to(package)}": path for path in files if path.suffix != ".pyc"}
    assert set(names) <= set(whole)
    assert {path for path in names.values() if path.suffix != ".py"} <= packed
    assert package / "training" / "configs" / "folder.yaml" in packed
    whole.remove("sat_tf/training/configs/folder.yaml")
    assert wheel.problems(whole) == ["sat_tf/training/configs/folder.yaml: missing"]


# -- ranges of versions ----------------------------------------------------------------------------

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


# -- public names ----------------------------------------------------------------------------------

PACKAGE = pathlib.Path(sat_tf.__file__).parent

FRESH = """
import sys
import sat_tf
heavy = {"tensorflow", "tf_keras", "keras", "tensorflow_model_optimization", "matplotlib", "PIL",
         "sklearn", "ai_edge_litert", "numpy", "pandas"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert dir(sat_tf) == sorted(sat_tf.__all__)
try:
    sat_tf.quantise_model
except AttributeError as error:
    assert "has no attribute 'quantise_model'" in str(error)
else:
    raise AssertionError("no AttributeError")
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert sat_tf.BitPolicy(weight_bits=3).weight_bits == 3
print("light")
"""


LIGHT = "; import sys; assert not {'tensorflow', 'keras', 'ai_edge_litert'} & {*sys.modules}"
LIGHT += "; print('light')"
FIRST = "import sat_tf; print(sat_tf.configs.weight_quantizer.__name__)"


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (FRESH, "light"),
        (f"import sat_tf.exact.targets.processors, sat_tf.qat.policy{LIGHT}", "light"),
        pytest.param(FIRST, "weight_quantizer", marks=pytest.mark.thorough),
    ],
    ids=["import", "targets", "configs"],
)
def test_importing_sat_tf_loads_nothing_heavy_and_the_first_name_may_be_any(code, printed):
    settings = {"capture_output": True, "text": True, "cwd": PACKAGE.parent}
    run = subprocess.run([sys.executable, "-c", code], **settings)
    assert run.stdout == f"{printed}\n", run.stderr[-2000:]


@pytest.mark.parametrize(("name", "home"), sat_tf._HOMES.items())
def test_every_public_name_is_the_one_of_its_module_and_explained(name, home):
    found = getattr(sat_tf, name)
    assert found is getattr(importlib.import_module(home), name)
    assert found.__doc__.strip()
    assert name in dir(sat_tf)


def test_type_checkers_see_the_same_names_in_the_same_places_at_most_18():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node)
    )
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == sat_tf._HOMES
    assert len(sat_tf.__all__) == len(set(sat_tf.__all__)) <= 18
