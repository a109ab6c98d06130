"""A plan as a page to read: one file with the diagram and the table, without anything to load."""

import os
from collections.abc import Iterable, Iterator

from sat_tf.atomic_file import written_whole
from sat_tf.planning.diagram import draw
from sat_tf.planning.pictures import PAGE_STYLE, svg_element
from sat_tf.planning.plan_table import (
    file_text,
    number_text,
    output_text,
    summary,
    verdict,
    weights_text,
)
from sat_tf.planning.planned_model import Fate, LayerPlan, PlannedModel, shape_text
from sat_tf.presentation.page import facts, page, row, table, text

_STYLE = f"""{PAGE_STYLE}
.plan {{ height: auto; }} .problem td {{ color: var(--bad); }}
.inserted td {{ color: var(--soft); }}
main {{ max-width: 120rem; }} td {{ vertical-align: top; }} .wide > svg {{ max-width: none; }}
@media print {{ .wide svg.plan {{ width: 100%; height: auto; }} }}
"""
_WORDS = ("layer", "kind", "shape", "becomes", "weights", "output", "in the file")
_NUMBERS = ("reads bits", "parameters", "multiply-adds", "BOPs", "bytes", "float bytes")


def write_page(plan: PlannedModel, path: str | os.PathLike[str]) -> None:
    """Writes the page; the file appears whole, or not at all.

    Raises:
        ValueError: the path cannot be written.
    """
    with written_whole(path) as temporary:
        temporary.write_text(plan_page(plan), encoding="utf-8")


def plan_page(plan: PlannedModel) -> str:
    """HTML that shows all of a plan."""
    refused = plan.problems or plan.export_problems
    return page(
        f"Plan of {plan.model}",
        [
            f'<p class="verdict {"bad" if refused else "good"}">{text(verdict(plan))}</p>',
            *(f"<p>{text(line)}.</p>" for line in summary(plan)),
            *_listed("Cannot be quantized as asked", plan.problems),
            *_listed("Cannot be exported", plan.export_problems),
            *_listed("Notes on the file", plan.notes),
            "<h2>Graph</h2>",
            f"<p>{_ON_GRAPH}</p>",
            '<div class="wide" tabindex="0" role="region" aria-label="graph">',
            svg_element(draw(plan)),
            "</div>",
            "<h2>Layers</h2>",
            f"<p>{_ON_NUMBERS}</p>",
            table(
                [*_WORDS, *_NUMBERS],
                [*_rows(plan), _totals(plan)],
                label="layers",
                right=len(_NUMBERS),
            ),
            "<h2>Policy</h2>",
            facts({name: str(value) for name, value in plan.policy.to_dict().items()}),
        ],
        style=_STYLE,
    )


_ON_GRAPH = (
    "Layers that become one operator of the file share a box. Its colour says how many bits its "
    "weights have, or else its codes; the strip, how many bits the codes have that it makes. "
    "Dashed boxes are quantizers that are put between layers."
)
_ON_NUMBERS = (
    "BOPs: multiply-adds times the bits of the weights times the bits of what they read; float "
    "counts as 32. Bytes are estimates: of the TFLite file, and of a float one. The image's row "
    "has what belongs to no layer."
)


def _listed(title: str, lines: Iterable[str]) -> Iterator[str]:
    items = [f"<li>{text(line)}</li>" for line in lines]
    if items:
        yield f"<h2>{text(title)}</h2><ul>"
        yield from items
        yield "</ul>"


def _rows(plan: PlannedModel) -> Iterator[str]:
    for layer in plan.rows:
        made = row([text(word) for word in _words(layer)], _numbers(layer))
        kind = {Fate.PROBLEM: "problem", Fate.INSERTED: "inserted"}.get(layer.fate, "")
        yield made.replace("<tr>", f'<tr class="{kind}">', 1) if kind else made


def _words(layer: LayerPlan) -> list[str]:
    return [
        layer.name,
        f"{layer.kind} {layer.detail}".strip(),
        shape_text(layer.shape),
        layer.fate.value,
        weights_text(layer),
        output_text(layer),
        file_text(layer),
    ]


def _numbers(layer: LayerPlan) -> list[str]:
    reads = layer.reading_bits
    return [
        "-" if reads is None else str(reads),
        number_text(layer.parameters),
        number_text(layer.multiply_adds),
        number_text(layer.bit_operations),
        number_text(layer.bytes),
        number_text(layer.float_bytes),
    ]


def _totals(plan: PlannedModel) -> str:
    numbers = (
        plan.parameters,
        plan.multiply_adds,
        plan.bit_operations,
        plan.bytes,
        plan.float_bytes,
    )
    words = ["in all", *[""] * (len(_WORDS) - 1)]
    return row(words, ["", *map(number_text, numbers)])
