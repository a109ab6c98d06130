"""Makes a process one without TensorFlow; imported before anything else."""

import importlib.abc
import sys

LIBRARIES = ("tensorflow", "tf_keras", "tensorflow_model_optimization")


class _Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LIBRARIES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def block() -> None:
    """From now on none of the libraries can be imported."""
    sys.meta_path.insert(0, _Absent())
