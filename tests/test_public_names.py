import ast
import importlib
import inspect
import pathlib
import subprocess
import sys

import pytest

import sat_tf

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


def test_importing_sat_tf_loads_nothing_heavy():
    run = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert run.stdout == "light\n", run.stderr[-2000:]


@pytest.mark.thorough
def test_the_first_name_that_is_used_may_be_any():
    code = "import sat_tf; print(sat_tf.configs.weight_quantizer.__name__)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent
    )
    assert run.stdout == "weight_quantizer\n", run.stderr[-2000:]


def test_there_are_at_most_18_public_names():
    assert len(sat_tf.__all__) == len(set(sat_tf.__all__)) <= 18


@pytest.mark.parametrize("name", sat_tf.__all__)
def test_every_public_name_is_there_and_explained(name):
    found = getattr(sat_tf, name)
    assert found is getattr(sat_tf, name)
    if name != "__version__":
        assert found.__doc__.strip()
    assert name in dir(sat_tf)


def test_a_public_name_is_the_one_of_its_module():
    for name, home in sat_tf._HOMES.items():
        found = getattr(sat_tf, name)  # those of models are for either Keras
        own = inspect.unwrap(found) if inspect.isfunction(found) else found
        assert own is getattr(importlib.import_module(home), name)


def test_type_checkers_see_the_same_names_in_the_same_places():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node)
    )
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == sat_tf._HOMES


def test_the_version_is_that_of_the_package():
    version = importlib.import_module("sat_tf.version").__version__
    assert sat_tf.__version__ == version
    assert [part.isdigit() for part in version.split(".")[:2]] == [True, True]
