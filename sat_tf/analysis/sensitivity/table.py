"""What layers lose, as a table on the screen."""

from rich.console import Console
from rich.table import Table

from sat_tf.analysis.sensitivity.damage import METRICS, Damage, Metric
from sat_tf.analysis.sensitivity.measured_model import LayerSensitivity, MeasuredModel

_NONE = "-"
_TITLES = {"top1": "top-1 lost", "distance": "distance", "divergence": "divergence"}
# What a terminal of 80 columns has no room for; the CSV has it.
_WIDE = 100


def print_sensitivity(found: MeasuredModel, console: Console, *, most: int | None = None) -> None:
    """Prints what the whole model loses, and each layer, the one that loses most first.

    Args:
        found: what was measured.
        console: where to print.
        most: how many layers; by default all.
    """
    for line in _summary(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    metrics = [name for name in METRICS if _value(found.together, METRICS[name]) is not None]
    # What layers are ranked by comes first.
    metrics.sort(key=lambda name: name != found.metric)
    table = Table(title="one layer quantized, the others float", title_justify="left")
    table.add_column("layer", no_wrap=True)
    if console.width >= _WIDE:
        table.add_column("kind", no_wrap=True)
    for title in ("bits", *(_TITLES[name] for name in metrics), "weights", "activations"):
        table.add_column(title, justify="right", no_wrap=True)
    ranked = found.ranked()
    for layer in ranked[:most]:
        cells = [layer.name, *([layer.kind] if console.width >= _WIDE else []), _bits(layer)]
        cells += [shown(layer.damage, METRICS[name]) for name in metrics]
        alone = (layer.weights, layer.activations)
        cells += [shown(damage, METRICS[found.metric]) for damage in alone]
        table.add_row(*cells)
    console.print(table)
    if most is not None and len(ranked) > most:
        console.print(f"and {len(ranked) - most} more layers, which lose less", highlight=False)


def shown(damage: Damage | None, metric: Metric) -> str:
    """What a metric says, in three digits of its unit; a dash where nothing was measured."""
    value = None if damage is None else _value(damage, metric)
    factor, _ = metric.unit
    return _NONE if value is None else f"{factor * value:.3g}"


def _value(damage: Damage, metric: Metric) -> float | None:
    value: float | None = getattr(damage, metric.field)
    return value


def _bits(layer: LayerSensitivity) -> str:
    named = (("w", layer.weight_bits), ("a", layer.activation_bits), ("s", layer.stream_bits))
    return "".join(f"{letter}{bits}" for letter, bits in named if bits is not None)


def _summary(found: MeasuredModel) -> list[str]:
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
