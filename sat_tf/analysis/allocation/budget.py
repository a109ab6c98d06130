"""The budget: which limits there are, and what users may say of them."""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

from sat_tf.messages import did_you_mean, list_problems


@dataclasses.dataclass(frozen=True)
class Limit:
    """A quantity that can be limited.

    Attributes:
        title: for readers.
        meaning: one sentence for errors and help.
        form: how values are shown.
    """

    title: str
    meaning: str
    form: str = ",.0f"


LIMITS: dict[str, Limit] = {
    "bytes": Limit("file bytes", "bytes of the .tflite file that `export_tflite` writes"),
    "ideal_bytes": Limit(
        "ideal bytes",
        "n · bits / 8 summed over all quantized kernels, as papers count: no file is that small",
    ),
    "bit_operations": Limit(
        "bit operations", "multiply-adds of one image · weight bits · activation bits"
    ),
    "milliseconds": Limit("milliseconds", "of one image, added up from the `latency` table", ".4g"),
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


@dataclasses.dataclass(frozen=True)
class Share:
    """A limit as a share of what the most bits need.

    Attributes:
        share: above 0; 0.5 is half.
    """

    share: float

    def __str__(self) -> str:
        return f"{100 * self.share:g}%"


def read_budget(budget: Any, *, has_latency: bool) -> dict[str, float | Share]:
    """The limits that a budget sets, by the names of `LIMITS`.

    Args:
        budget: {limit: a number, or a share such as "60%" of what the most bits need}.
        has_latency: whether there is a table of milliseconds.

    Raises:
        ValueError: it is empty, has unknown names, or values that are no positive numbers; lists
            all of them.

    >>> read_budget({"bytes": "60%", "average_bits": 4}, has_latency=False)["average_weight_bits"]
    4.0
    >>> read_budget({"byte": 4, "bit_operations": -1}, has_latency=False)
    Traceback (most recent call last):
      ...
    ValueError: budget: 2 problems
      - 'byte' is not a limit. Did you mean bytes?
      - bit_operations=-1: expected a number above 0, or a share such as '60%'.
    """
    if not isinstance(budget, Mapping) or not budget:
        raise ValueError(
            f"budget={budget!r}: expected a mapping with at least one limit of {', '.join(NAMES)}; "
            "write budget={'bytes': 500_000}, or {'average_bits': 4}."
        )
    limits: dict[str, float | Share] = {}
    problems: list[str] = []
    for name, value in budget.items():
        if name not in NAMES:
            problems.append(f"{name!r} is not a limit. {did_you_mean(str(name), NAMES)}")
            continue
        limit = _read(value)
        if limit is None:
            problems.append(
                f"{name}={value!r}: expected a number above 0, or a share such as '60%'."
            )
            continue
        if name == "milliseconds" and not has_latency:
            problems.append(
                f"{name}={value!r}: received no `latency`, expected a table with the milliseconds "
                "of each layer; measure them on the device, or leave this limit out."
            )
        for each in SHORT.get(name, (name,)):
            if each in limits:
                by = [one for one in budget if each in SHORT.get(one, (one,))]
                problems.append(
                    f"{each}: received two limits, by {' and '.join(by)}, "
                    "expected one; leave one out."
                )
            limits[each] = limit
    if problems:
        raise ValueError(list_problems("budget", problems))
    return limits


def _read(value: Any) -> float | Share | None:
    if isinstance(value, str):
        try:
            share = float(value.removesuffix("%")) / 100.0 if value.endswith("%") else math.nan
        except ValueError:
            share = math.nan
        return Share(share) if math.isfinite(share) and share > 0.0 else None
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not math.isfinite(float(value)) or float(value) <= 0.0:
        return None
    return float(value)


def shown(name: str, value: float | None, missing: str = "-") -> str:
    """A value of a limit as readers see it.

    >>> shown("bytes", 123456.0), shown("average_weight_bits", 3.5), shown("bytes", None)
    ('123,456', '3.500', '-')
    """
    return missing if value is None else format(value, LIMITS[name].form)
