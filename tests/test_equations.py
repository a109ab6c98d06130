"""The guide to the paper's equations names functions and tests that are there."""

import ast
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "paper" / "equations.md").read_text(encoding="utf-8")
FUNCTIONS = sorted(set(re.findall(r"`((?:sat_tf|benchmarks)\.[\w.]+)`", GUIDE)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", GUIDE)))
ROWS = [line for line in GUIDE.splitlines() if re.match(r"\| (\(|rule|Figure|Table|\d)", line)]

# The equations that have a name in the paper's LaTeX source, with their printed numbers.
NUMBERS = {
    "eq:forward": "1",
    "eq:linear_op": "1a",
    "eq:batchnorm_case": "3",
    "eq:kaiming_case": "4",
    "eq:clamp": "5",
    "eq:clamp_only": "6",
    "eq:constant_rescale": "7",
    "eq:quant": "8",
    "eq:quant_weight": "9",
    "eq:quant_constant_rescale": "10",
    "eq:clip": "11",
    "eq:STE": "12",
    "eq:grad_alpha": "13",
    "eq:appendix:var_logit_values": "S4",
    "eq:appendix:var_weight_last_layer": "S5",
    "eq:appendix:batchnorm_case": "S15",
    "eq:appendix:kaiming_case": "S16",
    "eq:appendix:empirical_verification": "S17",
    "eq:appendix:kappa_0": "S17",
    "eq:appendix:kappa_1": "S17",
    "eq:stddev_rescale": "S23",
    "eq:appendix:clip": "S24",
    "eq:appendix:STE": "S25",
    "eq:appendix:grad_alpha": "S26",
}
# Steps of derivations, which nothing computes.
DERIVED = {
    "eq:appendix:last_layer_forward",
    "eq:appendix:var_logit_values_derivation",
    "eq:appendix:forward",
    "eq:appendix:var_variables",
    "eq:appendix:mean_square_avg_pool",
    "eq:appendix:sigma_square_avg_pool",
    "eq:appendix:grad_stats",
    "eq:appendix:batchnorm",
    "eq:appendix:gradient",
    "eq:appendix:var_grad",
    "eq:appendix:var_grad_recursive",
}


@pytest.mark.parametrize("label", sorted(NUMBERS))
def test_every_equation_has_a_row_with_its_number(label):
    (row,) = [row for row in ROWS if f"`{label}`" in row]
    first, *_ = row.strip("| ").split(" | ")
    assert f"({NUMBERS[label]})" in first


def test_steps_of_derivations_are_named_as_such():
    assert set(re.findall(r"`(eq:[\w:]+)`", GUIDE)) == {*NUMBERS, *DERIVED}
    (paragraph,) = [text for text in GUIDE.split("\n\n") if text.startswith("Derived only")]
    assert set(re.findall(r"`(eq:[\w:]+)`", paragraph)) == DERIVED


def test_all_numbers_are_there():
    numbers = {
        number for row in ROWS for number in re.findall(r"\((\d+|S\d+)\)", row.split("|")[1])
    }
    for first, last in re.findall(r"\(S(\d+)\) to \(S(\d+)\)", GUIDE):
        numbers |= {f"S{number}" for number in range(int(first), int(last) + 1)}
    assert numbers >= {str(number) for number in range(1, 14)}
    assert numbers >= {f"S{number}" for number in range(1, 29)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:24])
def test_every_row_names_a_function_and_a_test(row):
    *_, functions, tests = row.strip("| ").split(" | ")
    assert re.search(r"`(sat_tf|benchmarks)\.", functions)
    assert "`tests/" in tests
    assert "::test_" in tests


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_there(name):
    words = name.split(".")
    # The longest beginning that is a module; the rest are its attributes.
    for length in range(len(words), 0, -1):
        path = ROOT.joinpath(*words[:length])
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            found = importlib.import_module(".".join(words[:length]))
            break
    assert length < len(words), f"{name} is a module"
    for word in words[length:]:
        found = getattr(found, word)
    assert callable(found)


@pytest.mark.parametrize("name", TESTS)
def test_tests_are_there(name):
    path, function = name.split("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_nothing_in_the_guide_is_left_unread():
    # A name that is written in another way would not be checked.
    in_backticks = re.findall(r"`([^`]+)`", GUIDE)
    others = [
        word
        for word in in_backticks
        if word not in FUNCTIONS and word not in TESTS and not word.startswith("eq:")
    ]
    assert set(others) == {
        "tests/reference.py",
        "python -m benchmarks.paper.figures",
        "policy.detach_max",
    }
