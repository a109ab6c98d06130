"""The version of sat-tf, its mark in saved layers, and versions of packages it computes with."""

from collections.abc import Iterable
from importlib import metadata
from typing import Any

__version__ = "0.2.0"

# The packages that decide what is computed.
COMPUTING = ("tensorflow", "tf_keras", "tensorflow-model-optimization", "ai-edge-litert", "numpy")


def installed_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The versions of packages by their names; None for one that is not installed as a package."""
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


# The format is raised when an older sat-tf could not read files of this one, or would compute
# something else from them. Files of all lower formats stay readable; tests/golden holds some of
# each. Files without a mark are older than the mark, and have format 1.
FORMAT = 5
_KEY = "saved_by"


def marked(config: dict[str, Any]) -> dict[str, Any]:
    """A layer's configuration with the mark of this version."""
    return {**config, _KEY: {"sat_tf": __version__, "format": FORMAT}}


def unmarked(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without its mark; ValueError where a newer format has saved it."""
    config = dict(config)
    mark = config.pop(_KEY, None)
    if mark is None:
        return config
    number, version = (mark.get("format"), mark.get("sat_tf")) if isinstance(mark, dict) else (0, 0)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(
            f"{config.get('name')}: received a model with the mark {mark!r}, expected "
            f"{marked({})[_KEY]!r}; save it again."
        )
    if number > FORMAT:
        raise ValueError(
            f"{config.get('name')}: received a model saved by sat-tf {version} in format {number}, "
            f"expected format {FORMAT} or lower, which sat-tf {__version__} reads; install sat-tf "
            f"{version} or later."
        )
    return config
