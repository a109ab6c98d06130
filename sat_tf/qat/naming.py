"""Names for layers: valid for TensorFlow, unique, and the same every time."""

import re

_INVALID = re.compile(r"[^A-Za-z0-9_.\\/>-]")


def unique_name(wanted: str, taken: set[str]) -> str:
    """A valid name that nothing has yet, and that is taken from now on.

    Args:
        wanted: what it is where it can be; characters that TensorFlow refuses become `_`, and
            `_2`, `_3`, ... follow where it is taken.
        taken: the names that others have; the new one is added.

    >>> taken = {"conv"}
    >>> unique_name("conv", taken), unique_name("conv", taken), unique_name("é 1", taken)
    ('conv_2', 'conv_3', 'x_1')
    """
    valid = _INVALID.sub("_", wanted)
    if not valid[:1].isalnum() and not valid.startswith("."):
        valid = f"x{valid[1:]}"
    name, count = valid, 1
    while name in taken:
        count += 1
        name = f"{valid}_{count}"
    taken.add(name)
    return name
