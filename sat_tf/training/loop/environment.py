"""The environment of a run: versions, machine, devices, commit."""

import datetime
import os
import pathlib
import platform
import subprocess
from importlib import metadata
from typing import Any

import tensorflow as tf

from sat_tf.version import __version__

_PACKAGES = (
    "tensorflow",
    "tf_keras",
    "tensorflow-model-optimization",
    "ai-edge-litert",
    "numpy",
    "scikit-learn",
    "matplotlib",
    "pillow",
)


def describe_environment(seed: int) -> dict[str, Any]:
    """Plain values, for JSON.

    Args:
        seed: of the run.
    """
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "sat_tf": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        # By default an operation takes as many threads as there are processors.
        "threads": os.environ.get("TF_NUM_INTRAOP_THREADS"),
        "devices": [
            f"{device.device_type}: {_device_name(device)}"
            for device in tf.config.list_physical_devices()
        ],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device_name(device: Any) -> str:
    details = tf.config.experimental.get_device_details(device)
    return str(details.get("device_name", device.name))


def _commit() -> str | None:
    """The commit of the checkout this package runs from; "+" where files have changed since."""
    checkout = pathlib.Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=checkout,
            check=True,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()
