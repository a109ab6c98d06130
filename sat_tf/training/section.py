"""What every section of a configuration has in common."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from sat_tf.messages import did_you_mean


class Section(BaseModel):
    """Strict types, no unknown keys, nothing changes after validation."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def known_name(name: str, known: Sequence[str], what: str) -> str:
    """The name itself; raises ValueError, with the nearest known one, where it is unknown."""
    if name not in known:
        raise ValueError(f"={name!r}: expected the name of a {what}. {did_you_mean(name, known)}")
    return name


def known_options(
    options: dict[str, Any], known: Sequence[str], elsewhere: Mapping[str, str]
) -> dict[str, Any]:
    """The options themselves; raises ValueError that lists the unknown ones.

    Args:
        options: what was received.
        known: the names there are.
        elsewhere: names that are set in another place, with the place.
    """
    problems = [
        f"{name} is not set here: {elsewhere[name]}."
        if name in elsewhere
        else f"{name} is not an option. {did_you_mean(name, known)}"
        for name in options
        if name not in known
    ]
    if problems:
        raise ValueError("\n".join(problems))
    return options
