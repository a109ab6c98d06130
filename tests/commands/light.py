"""Runs the command line in a process of its own, to see what it loads."""

import pathlib
import subprocess
import sys

_PROBE = """
import sys
from sat_tf.commands import main
try:
    status = main.main(sys.argv[1:])
except SystemExit as end:
    status = end.code
print("loaded:", *(name for name in ("tensorflow", "matplotlib") if name in sys.modules))
sys.exit(status)
"""


def told_without_tensorflow(
    *arguments: str, status: int, cwd: pathlib.Path | None = None, plots: bool = False
) -> str:
    """What a command prints, which ends with this status and loads nothing that takes long.

    Args:
        arguments: of `sat-tf`.
        status: the one expected.
        cwd: working directory of the process.
        plots: whether matplotlib may be loaded.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=cwd,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    loaded = done.stdout.splitlines()[-1].removeprefix("loaded:").split()
    assert set(loaded) <= ({"matplotlib"} if plots else set()), loaded
    return done.stdout + done.stderr
