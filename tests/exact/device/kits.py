"""Proof kits in folders: unpacked, changed as by others, and run in a process of their own."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from typing import Any
from unittest import mock

from sat_tf.exact.device import check


def unpacked(kit: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The folder with what is in a kit."""
    with zipfile.ZipFile(kit) as archive:
        archive.extractall(folder)
    return folder


def reseal(folder: pathlib.Path, change: Callable[[dict[str, Any]], None] = lambda kit: None):
    """Changes kit.json, and makes every hash in it fit what is in the folder, as a forger would."""
    path = folder / "kit.json"
    kit = json.loads(path.read_text())
    kit["files"] = {name: check.sha256((folder / name).read_bytes()) for name in kit["files"]}
    change(kit)
    kit["seal"] = check.seal(kit)
    path.write_text(json.dumps(kit))


def checked(script, cwd, *options: str, python=sys.executable) -> subprocess.CompletedProcess:
    """The outcome of a kit in a process of its own, where nothing of this package can be found."""
    words, limits = [python, "-I", *options, str(script)], {"timeout": 120, "check": False}
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, **limits)


def checked_here(folder: pathlib.Path, cwd: pathlib.Path) -> subprocess.CompletedProcess:
    """The outcome of an unpacked kit in this process."""
    said, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(check, "HERE", folder),
        mock.patch.object(sys, "argv", ["check.py"]),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(said),
    ):
        try:
            status = check.main()
        except check.UnusableError as problem:
            status, _ = 2, errors.write(str(problem))
    return subprocess.CompletedProcess([], status, said.getvalue(), errors.getvalue())


def certificate_in(folder: pathlib.Path) -> pathlib.Path:
    (found,) = folder.glob("certificate_*.json")
    return found
