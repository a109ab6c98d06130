import ast
import collections
import pathlib

import sat_tf
import sat_tf.export

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
# The same for the folders of the export; the files beside them stand on top of all.
EXPORT_MAY_IMPORT = {
    "tflite": set(),
    "litert": {"tflite"},
    "converter": {"litert", "tflite"},
    "operations": {"converter", "tflite"},
    "lowering": {"operations", "tflite"},
    "certificate": {"litert", "operations", "tflite"},
}
# Modules that all rooms share, and those at the top that may use everything.
SHARED = {"arguments", "atomic_file", "messages", "version"}
TOP = {"__init__", "__main__"}

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


def test_imports_within_the_export_follow_its_arrows():
    def against_the_arrows(name, tree):
        room, *places = name.split("/")
        if room != "export" or len(places) < 2:
            return set()
        words = [imported.split(".") for imported in _imported(tree)]
        found = {word[2] for word in words if word[:2] == ["sat_tf", "export"] and len(word) > 2}
        return found - EXPORT_MAY_IMPORT[places[0]] - {places[0]}

    assert not _offenders(against_the_arrows)


def test_the_lazy_names_are_for_users_alone():
    lazy = {f"sat_tf.{name}" for name, home in sat_tf._HOMES.items() if home != "sat_tf"}
    lazy |= {f"sat_tf.export.{name}" for name in sat_tf.export._HOMES}
    lazy -= {"sat_tf.configs"}  # a module, which users find here

    def shortcuts(name, tree):
        return set() if name.endswith("__init__.py") else lazy & set(_imported(tree))

    assert not _offenders(shortcuts)


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
