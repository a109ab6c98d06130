"""The limits of a budget."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sat_tf.messages import ProblemsError, instead_of
from sat_tf.validation import is_number


@dataclasses.dataclass(frozen=True)
class Limit:
    """A quantity that can be limited."""

    title: str  # For readers.
    meaning: str  # For errors and help.
    form: str = ",.0f"  # How values are shown.

    def show(self, value: float | None) -> str:
        """Returns a value as readers see it."""
        return "-" if value is None else format(value, self.form)


LIMITS: dict[str, Limit] = {
    "bytes": Limit("file bytes", "bytes of the .tflite file that `export_tflite` writes"),
    "milliseconds": Limit("milliseconds", "of one image on the `npu`, by its compiler", ".4g"),
    "average_weight_bits": Limit("mean weight bits", "mean bits over all quantized weights", ".3f"),
    "average_activation_bits": Limit(
        "mean activation bits",
        "mean bits over all values that linear layers read, without images and streams",
        ".3f",
    ),
}
# Short for several limits of the same value.
SHORT = {"average_bits": ("average_weight_bits", "average_activation_bits")}
NAMES = (*LIMITS, *SHORT)


def read_budget(budget: Any, *, npu: bool = False) -> dict[str, float | str]:
    """Returns the limits that a budget sets, by the names of `LIMITS`.

    Args:
        budget: {limit: a number, or a share such as "60%" of what the most bits need}.
        npu: there is one, whose milliseconds are known.

    >>> read_budget({"bytes": "60%", "average_bits": 4})["average_weight_bits"]
    4.0
    >>> read_budget({"byte": 4, "average_bits": -1})
    Traceback (most recent call last):
      ...
    sat_tf.messages.ProblemsError: budget: 2 problems
      - 'byte' is not a limit. Did you mean bytes?
      - average_bits=-1: expected a number above 0, or a share such as '60%'.
    """
    if not isinstance(budget, Mapping) or not budget:
        raise ValueError(
            f"budget={budget!r}: expected a mapping with at least one limit of {', '.join(NAMES)}; "
            "write budget={'bytes': 500_000}, or {'average_bits': 4}."
        )
    limits: dict[str, float | str] = {}
    problems: list[str] = []
    for name, value in budget.items():
        if name not in NAMES:
            problems.append(f"{name!r} is not a limit{instead_of(f'allocate.{name}', NAMES)}")
            continue
        is_share = isinstance(value, str) and value.endswith("%")
        number = math.nan
        if is_share or is_number(value):
            with contextlib.suppress(ValueError):
                number = float(value.removesuffix("%") if is_share else value)
        if not 0.0 < number < math.inf:
            problems.append(
                f"{name}={value!r}: expected a number above 0, or a share such as '60%'."
            )
            continue
        if name == "milliseconds" and not npu:
            problems.append(
                f"{name}={value!r}: received no `npu`, expected the Ethos-U whose compiler "
                "estimates them; name its configuration, such as 'ethos-u55-128'."
            )
        for limit in SHORT.get(name, (name,)):
            if limit in limits:
                problems.append(
                    f"{limit}: received two limits, by it and by average_bits, expected one; leave "
                    "one out."
                )
            limits[limit] = value if is_share else number
    if problems:
        raise ProblemsError("budget", problems)
    return limits
