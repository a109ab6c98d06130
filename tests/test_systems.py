"""Modules that only Linux or Unix has are imported only where they are used."""

import ast
import pathlib
import subprocess
import sys

import pytest

import sat_tf

_PACKAGE = pathlib.Path(sat_tf.__file__).parent
_UNIX = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix"}

# Libraries import what they like; after them, only this package is left without the modules.
_IMPORT_ALL = """
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


def test_modules_of_unix_are_imported_only_where_they_are_used():
    found = []
    for path in sorted(_PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in getattr(node, "names", ())]
            names += [getattr(node, "module", None)]
            if isinstance(node, ast.Import | ast.ImportFrom) and _UNIX & set(names):
                found.append(str(path.relative_to(_PACKAGE)))
    assert not found


@pytest.mark.thorough
def test_every_module_can_be_imported_without_those_of_unix():
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, *_UNIX], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 200
