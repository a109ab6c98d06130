"""The version of sat-tf and those of what it computes with, read without importing TensorFlow."""

from collections.abc import Iterable
from importlib import metadata

__version__ = "0.2.0"

# The packages that decide what is computed.
COMPUTING = ("tensorflow", "tf_keras", "tensorflow-model-optimization", "ai-edge-litert", "numpy")


def installed_versions(packages: Iterable[str] = COMPUTING) -> dict[str, str | None]:
    """The versions of packages by their names; None for one that is not installed as a package."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found
