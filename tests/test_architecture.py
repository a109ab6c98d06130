import ast
import collections
import graphlib
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

import keras as keras3  # noqa: TID251 -- methods are written in the names of its functions
import pytest
import tf_keras as keras

import sat_tf
import sat_tf.export
from sat_tf import configs
from sat_tf.core.tensor_ops import namespace
from sat_tf.exact.operations.graph_file import OPERATIONS
from sat_tf.graph import layer_kinds, layers, operation_layers
from sat_tf.quantizers.protocol import Quantizer

PACKAGE = pathlib.Path(sat_tf.__file__).parent
TREES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}
LINES = {name: len((PACKAGE / name).read_text().splitlines()) for name in TREES}


def _words(texts):
    return {name: set(text.split()) for name, text in texts.items()}


# Arrows point one way: what each room of the package may import of the others.
MAY_IMPORT = _words(
    {
        "exact": "",
        "core": "",
        "quantizers": "core exact",
        "graph": "core exact loading",
        "qat": "core quantizers graph exact",
        "export": "core quantizers graph qat exact",
        "loading": "",
        "keras3": "core quantizers graph qat exact loading",
        "analysis": "core quantizers graph qat exact export planning",
        "report": "quantizers graph qat exact export",
        "planning": "core quantizers graph qat exact export",
        "training": "quantizers graph qat exact export loading keras3 analysis report",
        "commands": "quantizers graph qat exact export loading keras3 analysis "
        "planning report training",
        "either_keras": "qat keras3",
        "output_folder": "exact",
        "pictures": "exact",
    }
)
# The same inside a room whose folders stand one above the other, and modules beside them; "." are
# those of the modules that have no arrows of their own.
MAY_IMPORT_WITHIN = {
    # A method of published tables is a file that nothing imports: the table has its name.
    "quantizers": _words({".": "", "methods": "."}),
    "analysis": _words({".": "", "allocation": "."}),
    "training": _words(
        {
            ".": "",
            "data": "",
            "models": "",
            "audit": "",
            "config_sections": "data models",
            "config": "data config_sections",
            "run_folder": "config",
            "trained_models": "data models config config_sections run_folder",
            "distribution": "data",
            "learner": "data config_sections",
            "recipes": "data config config_sections run_folder trained_models distribution learner",
            "loop": "data models audit config run_folder trained_models distribution learner "
            "recipes",
        }
    ),
    "exact": _words(
        {
            "kernels": "",
            "tflite": "kernels",
            "litert": "tflite",
            "operations": "kernels tflite",
            "targets": "kernels tflite",
            "top_k": "",
            "certificate": "kernels tflite litert operations targets top_k",
            "device": "kernels tflite litert operations targets certificate",
            "evaluate": "tflite litert operations certificate top_k",
            "operator_comparison": "kernels tflite litert operations certificate",
            ".": "",
        }
    ),
    "export": _words(
        {
            "lowering": "",
            # Modules that users call stand on top of all.
            ".": "lowering",
        }
    ),
}
# Modules that all rooms share, and those at the top that may use everything.
SHARED = {
    *("arguments", "either_keras", "files", "interruption", "messages", "output_folder"),
    *("pictures", "version", "yaml_text"),
}
TOP = {"__init__", "__main__", "callbacks", "configs"}

# Classes of Keras layers are named where the registries of layer kinds and operations are and
# models are rewritten, and where float networks are built. Everything else asks the registry.
MAY_NAME_LAYERS = ("graph/", "training/models/")
# These of keras.layers are no kinds of layers to look up.
NO_KINDS = {
    "Layer",  # a base
    "Wrapper",  # a base
    "OfTensorFlow",  # a base
    "OfSeveralTensors",  # a wrapper
    "InputLayer",  # where a graph begins
    "Lambda",  # code of the user's own, which is never looked into
    "RNN",  # a loop over steps of any kind
}
# These files name layers beside the registry.
NAMED_BESIDE = {
    # TensorFlow's converter would write a loop for these; the file tells it what to do instead.
    "export/lowering/float_layer.py": {"ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"}
}

# All that the mathematics needs besides Python itself, and the file for each library of tensors,
# by whose import that library is loaded.
CORE_LIBRARIES = {"numpy", "sat_tf"}
LIBRARY_OF = {"core/on_tensorflow.py": "tensorflow", "core/on_keras.py": "keras"}
PYTHON = {
    *("abc", "collections", "contextlib", "dataclasses", "functools", "importlib", "inspect"),
    *("itertools", "math", "numbers", "sys", "threading", "types", "typing"),
}


# The most lines that each room may have, so that one head can hold the house. Nobody raises one of
# these numbers without lowering others by as much; whoever makes a room smaller lowers its number.
MOST_LINES = {
    "analysis": 2097,
    "commands": 3335,
    "core": 2642,
    "exact": 13910,
    "export": 5097,
    "graph": 6248,
    "keras3": 2534,
    "loading": 850,
    "messages": 1241,
    "planning": 1549,
    "qat": 8455,
    "quantizers": 4083,
    "report": 736,
    "training": 7163,
    ".": 1438,  # the modules beside the rooms, together
}

# Packages whose names are loaded when they are first used: that is for those who use the package.
LAZY = ("sat_tf", "sat_tf.export")


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


def _module(name):
    """The dotted name of the module in a file."""
    words = ("sat_tf", *pathlib.PurePath(name).with_suffix("").parts)
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


MODULES = {_module(name): tree for name, tree in TREES.items()}


def _imported_modules(tree):
    """The modules of the package that a file imports, wherever in it and for whatever."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ({alias.name for alias in node.names} & set(MODULES))
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


def _definitions(tree, prefix=""):
    """Public functions, classes and their public methods, by dotted name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node, f"{node.name}.")


def _offenders(find):
    """The complaints of `find(name, tree)`, by file."""
    found = {name: find(name, tree) for name, tree in TREES.items()}
    return {name: complaint for name, complaint in found.items() if complaint}


def _in_no_file(find):
    """Makes a test of `find(name, tree)`, which returns what is wrong with a file."""

    def test():
        assert not _offenders(find)

    return test


def _imported_parts(tree):
    """The parts of the package that a file imports, and the first words of all other imports."""
    words = [imported.split(".") for imported in _imported(tree)]
    parts = {word[1] for word in words if word[0] == "sat_tf" and len(word) > 1}
    return parts & {*map(_part, TREES)}, {word[0] for word in words}


@_in_no_file
def test_imports_follow_the_arrows(name, tree):
    if _part(name) in TOP:
        return set()
    public = {"configs"} if name.startswith(METHODS) else set()
    own = MAY_IMPORT.get(_part(name), set()) | {_part(name)}
    return _imported_parts(tree)[0] - SHARED - own - public


# Methods of published tables are proof that what a page tells the author of a quantizer suffices.
METHODS = "quantizers/methods/"
AUTHORS_PAGE = PACKAGE.parent / "docs" / "api" / "quantize.md"


def test_a_method_needs_what_the_author_of_a_quantizer_is_told_and_no_more():
    page = AUTHORS_PAGE.read_text(encoding="utf-8").partition("## Parts of a quantizer")[2]
    modules = set(re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE))
    names = {f"sat_tf.configs.{name}" for name in configs.__all__}
    functions = {*dir(keras3.ops), *re.findall(r"^ {8}(\w+)\(", namespace.__doc__, re.MULTILINE)}

    def untold(name, tree):
        if not name.startswith(METHODS):
            return set()
        imported = set(_imported_modules(tree)) | {
            name for name in _imported(tree) if name.startswith("sat_tf.configs.")
        }
        called = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "n"
        }
        return (imported - modules - names) | (called - functions)

    assert not _offenders(untold)


# What users quantize with needs none of the pipeline that trains the paper's networks.
COMMANDS_OF_TRAINING = {f"commands/{name}.py" for name in ("train", "audit")}
# And two public names: `sat_tf.audit` and `sat_tf.callbacks.TrainingRules`.
NAMES_OF_TRAINING = {
    "__init__.py": {"sat_tf.training.audit.audit", "sat_tf.training.audit.audit.audit"},
    "callbacks.py": {
        "sat_tf.training.audit.training_rules",
        "sat_tf.training.audit.training_rules.TrainingRules",
    },
}


def test_nothing_but_two_commands_and_two_public_names_needs_training():
    def needs_training(name, tree):
        if _part(name) == "training" or name in COMMANDS_OF_TRAINING:
            return set()
        return {one for one in _imported(tree) if one.startswith("sat_tf.training")}

    assert _offenders(needs_training) == NAMES_OF_TRAINING
    late = {name for name, home in sat_tf._HOMES.items() if home.startswith("sat_tf.training")}
    assert late == {"audit"}


@_in_no_file
def test_imports_inside_a_room_follow_the_arrows(name, tree):
    def folder(words):
        return words[1] if len(words) > 1 and words[1] in rooms else "."

    words = _module(name).split(".")[1:]
    rooms = MAY_IMPORT_WITHIN.get(words[0] if words else "", {})
    beside = [imported.split(".")[1:] for imported in _imported_modules(tree)]
    beside = {folder(other) for other in beside if words and other[:1] == words[:1]}
    return beside - rooms[folder(words)] - {folder(words)} if rooms else set()


def test_every_part_and_every_folder_of_such_a_room_has_its_arrows():
    assert {_part(name) for name in TREES} <= set(MAY_IMPORT) | SHARED | TOP
    for room, arrows in MAY_IMPORT_WITHIN.items():
        folders = {path.parent.name for path in (PACKAGE / room).glob("*/__init__.py")}
        modules = {path.stem for path in (PACKAGE / room).glob("*.py")}
        assert folders <= set(arrows) - {"."} <= folders | modules


def test_arrows_lead_in_no_circle_and_files_import_each_other_in_none():
    # Imports in a function or for types alone count as well: who reads one of the files has to
    # read them all.
    files = {name: set(_imported_modules(tree)) - {name} for name, tree in MODULES.items()}
    for arrows in (MAY_IMPORT, *MAY_IMPORT_WITHIN.values(), files):
        graphlib.TopologicalSorter(arrows).prepare()  # its error names a circle


# What the proof may use beside NumPy and LiteRT: messages, whole files, and the version's number.
SHARED_BY_PROOF = {"exact", "files", "messages", "version"}


@_in_no_file
def test_the_proof_needs_nothing_of_what_makes_files(name, tree):
    if _part(name) not in SHARED_BY_PROOF:
        return set()
    parts, libraries = _imported_parts(tree)
    return libraries & {"tensorflow", "tf_keras", "keras"} | parts - SHARED_BY_PROOF


@pytest.mark.essential
@_in_no_file
def test_lazy_names_are_not_used_inside_the_package(name, tree):
    # They hide which module is needed, from readers and from the tests above.
    if _part(name) in TOP or _module(name) in LAZY:
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in LAZY]
        elif isinstance(node, ast.ImportFrom) and node.module in LAZY:
            found += {f"{node.module}.{alias.name}" for alias in node.names} - set(MODULES)
    return found


# The functions of the main road that read the graph of a model: where one comes from a user, and
# where one has just been built. All others are given the network.
READERS_OF_MODELS = {
    *("planning/explain.read_source", "export/export.export_tflite", "export/verify.verify_tflite"),
    *("export/verify.FloatReference", "export/converter_route.to_keras"),
    *("export/lowering/pipeline.with_image_size", "export/lowering/pipeline.snap_biases"),
    *("qat/layout.quantized_network", "qat/calibrate.estimate_statistics", "qat/finetune.finetune"),
}
READERS_OF_BUILT_MODELS = {
    *("graph/rewrite.network_of_layers", "export/lowering/pipeline.sized"),
    *("qat/scheme.quantize_model", "qat/layout.quantized_model"),
    *("qat/reconstruction/blocks.find_reference", "qat/requantize.requantize"),
    "qat/requantize.without_quantizers",
}


def test_a_model_is_read_where_it_enters_or_is_built():
    readers = {
        f"{name.removesuffix('.py')}.{definition.name}"
        for name, tree in TREES.items()
        if _part(name) in ("graph", "qat", "planning", "export")
        for definition in tree.body
        if isinstance(definition, ast.FunctionDef | ast.ClassDef)
        for node in ast.walk(definition)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Network"
    }
    assert readers == READERS_OF_MODELS | READERS_OF_BUILT_MODELS


@_in_no_file
def test_mathematics_and_quantizers_are_written_in_no_library_of_tensors(name, tree):
    if _part(name) not in ("core", "quantizers"):
        return set()
    return _imported_parts(tree)[1] - CORE_LIBRARIES - {LIBRARY_OF.get(name)} - PYTHON


# All concrete quantizers are named here, beside the file of each.
TABLE_OF_QUANTIZERS = "quantizers/table.py"


def _concrete_quantizers():
    """The file of each quantizer that can be made, by the name of its class."""
    found = {}
    for name, tree in TREES.items():
        if _part(name) == "quantizers":
            module = importlib.import_module(_module(name))
            for node in tree.body:
                named = getattr(node, "name", "").endswith(("Quantizer", "Observer"))
                kind = getattr(module, node.name) if named else Quantizer
                if issubclass(kind, Quantizer) and not inspect.isabstract(kind):
                    found[node.name] = name
    return found


def _words(tree):
    """Names, attributes and imported names of a file, and its strings that are one word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_a_quantizer_is_named_in_its_own_file_and_in_one_table():
    # Everyone else asks it: see quantizers/protocol.py.
    own = _concrete_quantizers()
    rows = {word.rpartition(".")[2] for word in _words(TREES[TABLE_OF_QUANTIZERS])}
    assert own
    assert set(own) <= rows

    def named(name, tree):
        if name == TABLE_OF_QUANTIZERS:
            return set()
        return {word for word in _words(tree) if own.get(word, name) != name}

    assert not _offenders(named)


def test_an_operation_is_asked_and_never_told_by_its_class():
    own = {kind.__name__: f"{kind.__module__}.py" for kind in OPERATIONS}
    own = {name: path.removeprefix("sat_tf.") for name, path in own.items()}

    def told(name, tree):
        here = name.replace("/", ".")
        checks = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass")
        ]
        named = [word for node in checks for word in _words(node.args[1])]
        return {word for word in named if own.get(word, here) != here}

    assert not _offenders(told)


def _named_layers(tree):
    """Classes of layers that code names, of Keras and our own, with the line; none of Keras 3."""
    own = {one.__name__ for one in operation_layers.LAYERS} | {"OfTensorFlow"}
    spelled = {"keras.layers", "operation_layers"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in spelled:
            spelled |= {ast.unparse(target) for target in node.targets}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in spelled:
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith(
            ("keras.layers", "graph.operation_layers")
        ):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            names = [arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
            names = names if ast.unparse(node.args[0]) in spelled else []
        for name in names:
            found = getattr(keras.layers, name, None)
            if name in own or (isinstance(found, type) and issubclass(found, keras.layers.Layer)):
                yield name, node.lineno


@pytest.mark.essential
@_in_no_file
def test_layer_kinds_are_rows_of_the_registry_and_named_nowhere_else(name, tree):
    known = NO_KINDS | NAMED_BESIDE.get(name, set())
    found = [one for one in _named_layers(tree) if one[0] not in known]
    return [] if name.startswith(MAY_NAME_LAYERS) else found


def test_each_layer_kind_is_a_row_of_one_family():
    modules = [
        importlib.import_module(f"{layers.__name__}.{module.name}")
        for module in pkgutil.iter_modules(layers.__path__)
    ]
    rows = [kind for module in modules for kind in getattr(module, "KINDS", ())]
    assert len(rows) == len(set(rows))
    assert set(layer_kinds.KINDS) - set(rows) == {keras.layers.InputLayer}


def test_files_are_named_after_what_they_hold_and_none_has_more_than_700_lines():
    stems = {pathlib.PurePath(name).stem for name in TREES}
    assert not stems & {"util", "utils", "common", "helper", "helpers", "misc"}
    assert not {name: count for name, count in LINES.items() if count > 700}


@_in_no_file
def test_no_function_has_more_than_120_lines(name, tree):
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if node.end_lineno - node.lineno + 1 > 120]


def test_rooms_keep_to_their_budgets():
    sizes = collections.Counter()
    for name, count in LINES.items():
        sizes["." if "/" not in name else _part(name)] += count
    assert set(sizes) == set(MOST_LINES), "each room has a budget, and each budget a room"
    above = {room: size for room, size in sizes.items() if size > MOST_LINES[room]}
    assert not above, "take as much out of the room as goes in"


# TFMOT explains these, and asks for them.
OF_TFMOT = {"get_weights_and_quantizers", "set_quantize_activations", "get_quantize_config"}


def test_everything_public_is_explained():
    """A method is explained where a class first has it: at its protocol or base."""
    explained = OF_TFMOT | {
        node.name
        for tree in TREES.values()
        for name, node in _definitions(tree)
        if "." in name and ast.get_docstring(node)
    }

    def bare(name, tree):
        found = [(name, node) for name, node in _definitions(tree) if not ast.get_docstring(node)]
        found = [name for name, node in found if not ("." in name and node.name in explained)]
        return found if ast.get_docstring(tree) else ["the module", *found]

    assert not _offenders(bare)


# Only Linux or Unix has these modules.
UNIX = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix"}

# Libraries import what they like; after them, only this package is left without the modules.
IMPORT_ALL = """
import importlib, pkgutil, sys
import PIL.Image, matplotlib.pyplot, multiprocessing, sklearn.datasets, subprocess, tempfile
import ai_edge_litert.interpreter, keras, tensorflow_datasets, tf_keras
import tensorflow_model_optimization
import rich.console, rich.progress
for name in sys.argv[1:]:
    sys.modules[name] = None
import sat_tf
for module in pkgutil.walk_packages(sat_tf.__path__, "sat_tf."):
    if not module.name.endswith(("__main__", ".check")):
        importlib.import_module(module.name)
print(sum(name.startswith("sat_tf.") for name in sys.modules))
"""


@_in_no_file
def test_modules_of_unix_are_imported_only_where_they_are_used(name, tree):
    beginning = ast.Module([node for node in tree.body if "body" not in node._fields], [])
    return UNIX & set(_imported(beginning))


def _printed(*words):
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.thorough
def test_every_module_can_be_imported_without_those_of_unix():
    assert int(_printed(IMPORT_ALL, *UNIX).split()[-1]) > 200


# Keras makes sat-tf's layers known as soon as it is imported, and these need each other for that.
# Files import each other in no circle, so that two of them stand for all.
@pytest.mark.thorough
@pytest.mark.parametrize("module", ["sat_tf.graph.network", "sat_tf.qat.configs"])
def test_a_module_may_be_the_first_import(module):
    _printed(f"import {module}, sat_tf; sat_tf.quantize_model; import sat_tf.qat.wrapper")
