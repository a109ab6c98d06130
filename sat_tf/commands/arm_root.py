"""`sat-tf arm_root`."""

import argparse

from rich.console import Console

from sat_tf.export.device.arm_root import find_root, make_root, root_folder
from sat_tf.messages import RunError

SUMMARY = "make the Arm system that `sat-tf verify --arm` emulates"
DESCRIPTION = (
    "Makes an Arm root: Python, NumPy and LiteRT for Arm, of Debian's packages and of wheels, and "
    "the emulator qemu where this machine has none. Nothing is installed: all of it is one folder, "
    "sat-tf/arm in $XDG_CACHE_HOME, by default ~/.cache. Needs Debian or a relative of it, and a "
    "network: 55 MB are downloaded, and 63 MB more for qemu."
)
EXAMPLES = """\
examples:
  sat-tf arm_root
  sat-tf arm_root --again
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--again", action="store_true", help="make it anew even if there is one that fits"
    )


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Does what the arguments ask for."""
    made = "is there"
    try:
        root = None if arguments.again else find_root()
    except ValueError as error:
        root = None
        if root_folder().exists():
            reason = str(error).split(";")[0]
            console.print(
                f"{reason}; it is made anew", highlight=False, markup=False, soft_wrap=True
            )
    try:
        if root is None:
            made, root = "is made", make_root(progress=True)
    except ValueError as error:
        raise RunError(str(error)) from error
    console.print(
        f"The Arm root {made}: {root.folder}, {root.bytes / 1e6:.0f} MB; Python {root.python}, "
        f"ai-edge-litert {root.litert}, {root.emulator}. To be rid of it, remove the folder.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
