"""The sensitivity of layers, as a table on the screen."""

import dataclasses
import operator

from rich.console import Console

from sat_tf.analysis.sensitivity.damage import METRICS, Damage, Metric
from sat_tf.analysis.sensitivity.measured_model import LayerSensitivity, MeasuredModel
from sat_tf.messages import say
from sat_tf.presentation.tables import Column, Table

_NONE = "-"
_TITLES = {"top1": "top-1 lost", "distance": "distance", "divergence": "divergence"}
# Narrower terminals have no column for the kind; the CSV has it.
_WIDE = 100


def print_sensitivity(found: MeasuredModel, console: Console, *, most: int | None = None) -> None:
    """Prints what the whole model loses, and each layer, the one that loses most first.

    Args:
        found: what was measured.
        console: where to print.
        most: how many layers; by default all.
    """
    for line in summary(found):
        say(console, line)
    table = layer_table(found, wide=console.width >= _WIDE)
    hidden = len(table.rows) - len(table.rows[:most])
    table = dataclasses.replace(table, rows=table.rows[:most])
    console.print(table.to_rich(title=TITLE, title_justify="left"))
    if hidden:
        console.print(f"and {hidden} more layers, which lose less", highlight=False)


TITLE = "one layer quantized, the others float"


def layer_table(found: MeasuredModel, *, wide: bool = True) -> Table[LayerSensitivity]:
    """The layers, the one that loses most first."""
    return Table(columns=_columns(found, wide=wide), rows=found.ranked())


def _columns(found: MeasuredModel, *, wide: bool) -> list[Column[LayerSensitivity]]:
    metrics = [name for name in METRICS if _value(found.together, METRICS[name]) is not None]
    # What layers are ranked by comes first.
    metrics.sort(key=lambda name: name != found.metric)
    kind: Column[LayerSensitivity] = Column("kind", lambda layer: layer.kind, wrap="never")
    return [
        Column("layer", lambda layer: layer.name, wrap="never"),
        *([kind] if wide else []),
        Column("bits", _bits, number=True, wrap="never"),
        *(_damage(_TITLES[name], "damage", METRICS[name]) for name in metrics),
        _damage("weights", "weights", METRICS[found.metric]),
        _damage("activations", "activations", METRICS[found.metric]),
    ]


def _damage(title: str, field: str, metric: Metric) -> Column[LayerSensitivity]:
    def show(damage: Damage | None) -> str:
        return shown(damage, metric)

    return Column(title, operator.attrgetter(field), show, number=True, wrap="never")


def shown(damage: Damage | None, metric: Metric) -> str:
    """The value of a metric, in three digits of its unit; a dash if nothing was measured."""
    value = None if damage is None else _value(damage, metric)
    factor, _ = metric.unit
    return _NONE if value is None else f"{factor * value:.3g}"


def _value(damage: Damage, metric: Metric) -> float | None:
    value: float | None = getattr(damage, metric.field)
    return value


def _bits(layer: LayerSensitivity) -> str:
    named = (("w", layer.weight_bits), ("a", layer.activation_bits), ("s", layer.stream_bits))
    return "".join(f"{letter}{bits}" for letter, bits in named if bits is not None)


def summary(found: MeasuredModel) -> list[str]:
    """What was measured, what the whole model loses, and how to read the table."""
    lost = []
    for name, metric in METRICS.items():
        if _value(found.together, metric) is not None:
            unit = metric.unit[1]
            value = shown(found.together, metric)
            lost.append(f"{_TITLES[name]} {value}{' ' if unit else ''}{unit}")
    start = f"{found.model}: {found.num_images} images"
    if found.top1 is not None:
        start += f", top-1 {100 * found.top1:.1f} % as float"
    return [
        f"{start}; {len(found.layers)} layers, ranked by {_TITLES[found.metric]}",
        f"all of them quantized, without training: {', '.join(lost)}",
        "bits: w of the kernel, a of what the layer reads, s of the stream it makes; the last two "
        "columns are the layer's kernel and what it reads, alone",
    ]
