import ast
import collections
import importlib
import pathlib
import pkgutil

import tf_keras as keras

import sat_tf
from sat_tf.graph import layer_kinds, layers

PACKAGE = pathlib.Path(sat_tf.__file__).parent
TREES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}
LINES = {name: len((PACKAGE / name).read_text().splitlines()) for name in TREES}

# Arrows point one way: what each room of the package may import of the others.
MAY_IMPORT = {
    "core": set(),
    "quantizers": {"core"},
    "graph": {"core"},
    "qat": {"core", "graph", "quantizers"},
    "export": {"core", "graph", "quantizers", "qat", "presentation"},
    "loading": set(),
    "keras3": {"graph", "quantizers", "qat", "loading"},
    "models": set(),
    "data": set(),
    "presentation": set(),
    "analysis": {"core", "graph", "quantizers", "qat", "presentation"},
    "callbacks": {"qat", "analysis", "presentation"},
    "planning": {"core", "graph", "quantizers", "qat", "export", "presentation"},
    "training": {
        "graph",
        "quantizers",
        "qat",
        "export",
        "analysis",
        "loading",
        "models",
        "data",
        "presentation",
    },
    "reproduction": {"core", "qat", "analysis", "models", "data", "training", "presentation"},
    "commands": {
        "graph",
        "quantizers",
        "qat",
        "export",
        "planning",
        "analysis",
        "keras3",
        "loading",
        "models",
        "data",
        "training",
        "reproduction",
        "presentation",
    },
}
# Modules that all rooms share, and those at the top that may use everything.
SHARED = {"arguments", "atomic_file", "messages", "version"}
TOP = {"__init__", "__main__"}

# Where classes of Keras layers are named: where the registry of layer kinds is and models are
# rewritten, where float networks are built, and where layers are made of Keras 3's operations.
# Everything else asks the registry.
MAY_NAME_LAYERS = ("graph/", "models/", "keras3/operation_table.py")
# Of keras.layers, what is no kind of layer to look up.
NO_KINDS = {
    "Layer",  # a base
    "Wrapper",  # a base
    "InputLayer",  # where a graph begins
    "Lambda",  # code of the user's own, which is never looked into
    "RNN",  # a loop over steps of any kind
}
# What else is named beside the registry, by file.
NAMED_BESIDE = {
    # Of these, TensorFlow's converter would write a loop: what it is told instead stands there.
    "export/converter/float_layers.py": {"ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"},
}

# All that the arithmetic needs besides Python itself.
CORE_LIBRARIES = {"tensorflow", "sat_tf"}
PYTHON = {
    "abc",
    "collections",
    "dataclasses",
    "functools",
    "itertools",
    "math",
    "threading",
    "typing",
}


def _part(name):
    return name.split("/")[0].removesuffix(".py")


def _imported(tree):
    """Dotted names of all modules that a file imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _definitions(tree):
    """Public functions, classes and their public methods, by dotted name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    waiting = collections.deque((node, "") for node in tree.body)
    while waiting:
        node, prefix = waiting.popleft()
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                waiting.extend((child, f"{node.name}.") for child in node.body)


def _offenders(find):
    """What `find(name, tree)` complains of, by file."""
    found = {name: find(name, tree) for name, tree in TREES.items()}
    return {name: complaint for name, complaint in found.items() if complaint}


def test_imports_follow_the_arrows():
    parts = set(MAY_IMPORT) | SHARED | TOP

    def against_the_arrows(name, tree):
        if _part(name) in TOP:
            return set()
        words = [imported.split(".") for imported in _imported(tree)]
        imported = {word[1] for word in words if word[0] == "sat_tf" and len(word) > 1} & parts
        return imported - SHARED - MAY_IMPORT.get(_part(name), set()) - {_part(name)}

    assert not _offenders(against_the_arrows)


def test_every_part_has_its_arrows():
    assert {_part(name) for name in TREES} <= set(MAY_IMPORT) | SHARED | TOP


def test_the_core_imports_nothing_but_tensorflow():
    def others(name, tree):
        if _part(name) != "core":
            return set()
        return {imported.split(".")[0] for imported in _imported(tree)} - CORE_LIBRARIES - PYTHON

    assert not _offenders(others)


def test_imports_are_absolute_and_by_name():
    def loose(_, tree):
        return [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and (node.level or any(alias.name == "*" for alias in node.names))
        ]

    assert not _offenders(loose)


def test_there_is_one_keras():
    # The meaning of the others depends on what was imported first. Keras 3 itself is `keras`, in
    # the one part that is about it.
    def others(name, tree):
        names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        wrong = names & {"tf.keras", "tensorflow.keras"}
        imported = set(_imported(tree))
        beside = ("tensorflow.keras",) if _part(name) == "keras3" else ("keras", "tensorflow.keras")
        return wrong | {n for n in imported if n.startswith(beside)}

    assert not _offenders(others)


def _named_layers(tree):
    """Classes of Keras layers that code names, with the line; not those of Keras 3."""
    spelled = {"keras.layers"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in spelled:
            spelled |= {ast.unparse(target) for target in node.targets}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in spelled:
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("keras.layers"):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            names = [arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
            names = names if ast.unparse(node.args[0]) in spelled else []
        for name in names:
            found = getattr(keras.layers, name, None)
            if isinstance(found, type) and issubclass(found, keras.layers.Layer):
                yield name, node.lineno


def test_layer_kinds_are_rows_of_the_registry_and_named_nowhere_else():
    def named(name, tree):
        known = NO_KINDS | NAMED_BESIDE.get(name, set())
        found = [one for one in _named_layers(tree) if one[0] not in known]
        return [] if name.startswith(MAY_NAME_LAYERS) else found

    assert not _offenders(named)


def test_each_layer_kind_is_a_row_of_one_family():
    modules = [
        importlib.import_module(f"{layers.__name__}.{module.name}")
        for module in pkgutil.iter_modules(layers.__path__)
    ]
    rows = [kind for module in modules for kind in getattr(module, "KINDS", ())]
    assert len(rows) == len(set(rows))
    assert set(layer_kinds.KINDS) - set(rows) == {keras.layers.InputLayer}


def test_files_are_named_after_what_they_hold():
    stems = {pathlib.PurePath(name).stem for name in TREES}
    assert not stems & {"util", "utils", "common", "helper", "helpers", "misc"}


def test_no_file_has_more_than_700_lines():
    assert not {name: count for name, count in LINES.items() if count > 700}


def test_everything_public_is_explained():
    def bare(_, tree):
        found = [name for name, node in _definitions(tree) if not ast.get_docstring(node)]
        return found if ast.get_docstring(tree) else ["the module", *found]

    assert not _offenders(bare)


def test_users_are_never_checked_by_assert():
    def asserts(_, tree):
        return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]

    assert not _offenders(asserts)
