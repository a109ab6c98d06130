"""The boxes of a diagram: layers that are fused together are one."""

import dataclasses

from sat_tf.planning.layer_plan import Export, Fate, LayerPlan
from sat_tf.planning.plan import Plan
from sat_tf.planning.short_kind import short_kind


@dataclasses.dataclass(frozen=True)
class Box:
    """What is drawn as one.

    Attributes:
        rows: its layers, in order; the last makes its tensor.
        reads: indices of the boxes that it reads.
    """

    rows: tuple[LayerPlan, ...]
    reads: tuple[int, ...]

    @property
    def main(self) -> LayerPlan:
        """The layer it is coloured by: the linear one, or else the first."""
        return next((row for row in self.rows if row.multiply_adds or row.weights), self.rows[0])

    @property
    def made(self) -> LayerPlan:
        """The layer with the quantizer of its tensor, or else the last one."""
        rows = [row for row in self.rows if row.activation is not None]
        return rows[-1] if rows else self.rows[-1]

    @property
    def is_problem(self) -> bool:
        """Whether a layer in it cannot be quantized, or not be exported."""
        return any(row.problems or row.export is Export.REFUSED for row in self.rows)

    @property
    def is_float(self) -> bool:
        """Whether it is left float: neither weights nor what it makes have codes."""
        has_codes = self.main.weights is not None or self.made.activation is not None
        is_float = any(row.fate in (Fate.FLOAT, Fate.PROBLEM) for row in self.rows)
        return is_float and not has_codes

    @property
    def makes_float(self) -> bool:
        """Whether its tensor is float in training: it has no codes, and gets none of a reader."""
        made = self.made
        moves = made.fate in (Fate.MOVES, Fate.INPUT)
        return made.activation is None and not made.absorbed_by and not moves

    @property
    def is_small(self) -> bool:
        """Whether it is a quantizer that was inserted, and nothing else."""
        return all(row.inserted for row in self.rows)

    @property
    def color_bits(self) -> int | None:
        """Bits of its weights, or else of its codes; None where it has neither."""
        if self.is_float:
            return None
        if self.main.weights is not None:
            return self.main.weights.bits
        return self.made.activation.bits if self.made.activation else None

    def title(self) -> str:
        """What its layers are."""
        words = []
        for row in self.rows:
            kind = "quantize" if row.inserted else short_kind(row.kind)
            if row.kind == "Activation":
                words.append(row.detail)
            elif kind != "quantize" or self.is_small:
                words.append(f"{kind} {row.detail}".strip())
        return " + ".join(words)

    def names(self) -> str:
        """What its layers are called."""
        first, *others = [row.name for row in self.rows if not row.inserted] or [self.rows[0].name]
        return ", ".join([first, *others])

    def bits(self) -> str:
        """Bits of its weights and codes, in words: "codes s8" are signed ones of 8 bits."""
        words = []
        if self.main.weights is not None:
            bits = self.main.weights.bits
            words.append("weights not rounded" if bits is None else f"weights {bits}")
        elif self.is_float:
            words.append("problem" if any(row.problems for row in self.rows) else "float")
        activation = self.made.activation
        if activation is not None:
            words.append(f"codes {'s' if activation.signed else 'u'}{activation.bits}")
        elif self.makes_float and not self.is_float:
            words.append("float")
        return ", ".join(words)


def boxes_of(plan: Plan) -> list[Box]:
    """The boxes of a plan, producers before consumers."""
    readers: dict[str, list[str]] = {}
    for row in plan.rows:
        for name in row.reads:
            readers.setdefault(name, []).append(row.name)
    joined: dict[str, str] = {}  # the box of each row, by the name of its last row
    for row in reversed(plan.rows):
        reader = _fused_reader(row, readers.get(row.name, []), plan)
        joined[row.name] = joined[reader] if reader else row.name
    for row in plan.rows:
        if row.export is Export.NOTHING and not row.fused_into and len(row.reads) == 1:
            box = joined[row.reads[0]]
            joined = {name: box if to == row.name else to for name, to in joined.items()}
    members: dict[str, list[LayerPlan]] = {}
    for row in plan.rows:
        members.setdefault(joined[row.name], []).append(row)
    index = {name: i for i, name in enumerate(members)}
    boxes = []
    for name, rows in members.items():
        reads = [index[joined[read]] for row in rows for read in row.reads]
        others = tuple(i for i in dict.fromkeys(reads) if i != index[name])
        boxes.append(Box(tuple(rows), others))
    return boxes


def _fused_reader(row: LayerPlan, readers: list[str], plan: Plan) -> str:
    """The only reader of a layer, where it is one with it."""
    if len(readers) != 1:
        return ""
    if row.kind == "InputLayer" and plan[readers[0]].kind == "ImageQuantizer":
        return readers[0]
    if row.export in (Export.UNKNOWN, Export.REFUSED):
        concatenates = row.absorbed_by and plan[row.absorbed_by].kind == "Concatenate"
        return "" if concatenates else row.absorbed_by
    return readers[0] if len(row.fused_into) == 1 else ""
