"""The operators of a file that another tool wrote, as they were compared: tables and a page."""

import collections
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from sat_tf.export.certificate.runtimes import RUNTIMES
from sat_tf.export.tflite.contents import MoreGraph
from sat_tf.files import write_text
from sat_tf.messages import say
from sat_tf.presentation.tables import (
    Cell,
    Column,
    Marked,
    RowTable,
    Table,
    marked_text,
    percent,
    render_page,
)


@dataclasses.dataclass
class Differences:
    """How many values of two tensors differ."""

    compared: int = 0  # How many values.
    differing: int = 0  # How many of them differ.
    largest: float = 0.0  # The largest difference, in codes, or in real values of a float tensor.

    def add(self, expected: np.ndarray, found: np.ndarray) -> None:
        """Counts the values of one image."""
        distance = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        self.compared += found.size
        self.differing += int(np.count_nonzero(found != expected))
        self.largest = max(self.largest, float(np.max(distance, initial=0.0)))

    @property
    def share(self) -> str:
        """How many differ of how many, in words."""
        return f"{self.differing:,} of {self.compared:,}"

    def __add__(self, other: "Differences") -> "Differences":
        largest = max(self.largest, other.largest)
        counts = self.compared + other.compared, self.differing + other.differing
        return Differences(*counts, largest)


@dataclasses.dataclass
class KernelCount:
    """The codes that a runtime makes of one operator."""

    # Of what it made on its own inputs, from the simulation with its own rules: nothing is counted
    # where it is only simulated.
    own: Differences = dataclasses.field(default_factory=Differences)
    # Of what its rules make of the inputs that the operator has under XNNPACK here, from what
    # XNNPACK made.
    beside_xnnpack: Differences = dataclasses.field(default_factory=Differences)


@dataclasses.dataclass(frozen=True)
class ComparedOperator:
    """An operator of a file."""

    number: int  # Its place in the file.
    kind: str  # Its name.
    tensor: str  # The name of the first tensor that it makes.
    multiply_adds: int  # Of an image, as far as its shapes tell.
    reason: str  # Why it is not simulated; empty where it is.
    # By the names of the runtimes; empty where it is not simulated.
    counts: Mapping[str, KernelCount]

    @property
    def name(self) -> str:
        """Its number, its kind and the tensor that it makes."""
        return f"{self.number} {self.kind} {self.short_tensor}"

    @property
    def short_tensor(self) -> str:
        """The first of the names that TensorFlow's converter joins to one."""
        return self.tensor.split(";")[0]

    def differs(self, runtime: str) -> bool:
        """Whether a runtime makes other codes than its rules say, or than XNNPACK does."""
        count = self.counts.get(runtime)
        return count is not None and bool(count.own.differing or count.beside_xnnpack.differing)


@dataclasses.dataclass(frozen=True, repr=False)
class OperatorComparison(RowTable):
    """The operators of a file in order, each compared on the inputs that it has there.

    It proves nothing of a file: it says what was compared, and where kernels part.

    Attributes:
        file: its name.
        num_images: how many images it was run on.
        images_from: where they come from.
        operators: all of the file.
        runtimes: the names of those that were compared, "xnnpack" first.
        refused: why others do not run the file, by their names.
        outputs: of the whole file from those of XNNPACK, by the names of the runtimes that run.
        more_graphs: the graphs of the file behind the first, which alone is compared.
        warnings: what to know about the file.
    """

    file: str
    num_images: int
    images_from: str
    operators: tuple[ComparedOperator, ...]
    runtimes: tuple[str, ...]
    refused: Mapping[str, str]
    outputs: Mapping[str, Differences]
    more_graphs: tuple[MoreGraph, ...] = ()
    warnings: tuple[str, ...] = ()

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("operator", "kind", "tensor", "multiply_adds", "reason", "runtime"),
        *("compared", "differing", "largest"),
        *("beside_xnnpack_compared", "beside_xnnpack_differing", "beside_xnnpack_largest"),
    )
    _width: ClassVar[int] = 140

    @property
    def simulated(self) -> list[ComparedOperator]:
        """The operators that were compared."""
        return [operator for operator in self.operators if operator.counts]

    @property
    def multiply_adds_simulated(self) -> float | None:
        """Their share of all multiply-adds that are known, in [0, 1]; None where there are none."""
        known = sum(operator.multiply_adds for operator in self.operators)
        return sum(operator.multiply_adds for operator in self.simulated) / known if known else None

    def total(self, runtime: str) -> KernelCount:
        """The counts of all operators."""
        counts = [operator.counts[runtime] for operator in self.simulated]
        own = sum((count.own for count in counts), Differences())
        beside = sum((count.beside_xnnpack for count in counts), Differences())
        return KernelCount(own, beside)

    def first_differing(self, runtime: str) -> ComparedOperator | None:
        """The first operator of which a runtime makes other codes than its rules or XNNPACK."""
        return next((one for one in self.operators if one.differs(runtime)), None)

    @property
    def is_explained(self) -> bool:
        """Whether every code that a runtime made is the one that its rules give."""
        return not any(self.total(name).own.differing for name in self.runtimes)

    def to_rows(self) -> list[dict[str, Any]]:
        """One for each operator and runtime; of an operator that is not simulated, one in all."""
        rows: list[tuple[Any, ...]] = []
        for one in self.operators:
            about = (one.number, one.kind, one.tensor, one.multiply_adds, one.reason)
            if not one.counts:
                rows.append((*about, *[None] * 7))
            for name, count in one.counts.items():
                pair = (count.own, count.beside_xnnpack)
                found = [(each.compared, each.differing, each.largest) for each in pair]
                rows.append((*about, name, *found[0], *found[1]))
        return [dict(zip(self.COLUMNS, row, strict=True)) for row in rows]

    def _headline(self) -> Cell:
        """The first operator of all that differs, and in which runtimes."""
        firsts = {name: self.first_differing(name) for name in self.runtimes}
        numbers = [one.number for one in firsts.values() if one is not None]
        if not numbers:
            return f"{self.file}: no operator that is simulated differs"
        first = self.operators[min(numbers)]
        names = ", ".join(name for name, one in firsts.items() if one is first)
        return f"{self.file}: the first operator that differs is {first.name} ({names})"

    @property
    def _extent(self) -> str:
        """How much of the file was compared, and on what."""
        known = self.multiply_adds_simulated
        share = "" if known is None else f", {percent(1)(known)} of the multiply-adds"
        return (
            f"{len(self.simulated)} of {len(self.operators)} operators simulated{share}, on "
            f"{self.num_images} images ({self.images_from})"
        )

    def _notes(self) -> list[Cell]:
        return [self._extent, *self._answers(), *self._remarks()]

    def _answers(self) -> list[Cell]:
        """Sentences on what each runtime does otherwise, or why it does not run the file."""
        lines: list[Cell] = []
        for name in self.runtimes:
            total, first, said = self.total(name), self.first_differing(name), []
            if total.own.compared:
                said.append(f"{total.own.share} codes differ from the simulation")
            if name != "xnnpack":
                said.append(
                    f"for the same inputs, {total.beside_xnnpack.share} codes are not XNNPACK's"
                )
            if first is not None:
                said.append(f"the first operator that differs is {first.name}")
            if name in self.outputs and name != "xnnpack":
                output = self.outputs[name]
                largest = f", by {output.largest:.3g} at most" if output.differing else ""
                values = f"{output.share} values of the output"
                said.append(f"of the whole file, {values} are not XNNPACK's{largest}")
            kind = "good" if first is None else "bad" if total.own.differing else "watch"
            lines.append(Marked(f"{RUNTIMES[name].title}: {'; '.join(said)}", kind))
        return lines + [
            f"{RUNTIMES[name].title} does not run it: {why}" for name, why in self.refused.items()
        ]

    def _remarks(self) -> list[Cell]:
        """Sentences on what was not compared."""
        lines: list[Cell] = []
        missing = collections.Counter(
            (one.kind, one.reason) for one in self.operators if not one.counts
        )
        for (kind, reason), count in missing.items():
            alike = [one for one in self.operators if (one.kind, one.reason) == (kind, reason)]
            work = sum(one.multiply_adds for one in alike if not one.counts)
            share = f", {work:,} multiply-adds" if work else ""
            lines.append(f"Not simulated: {count} {kind}{share}: {reason}")
        for graph in self.more_graphs:
            by = f"run by {' and '.join(graph.run_by)}" if graph.run_by else "which nothing runs"
            lines.append(
                f"Not compared: {graph.name} with {graph.operators} operators, {by}; "
                "only the first graph of a file is: convert it as a model of its own."
            )
        lines += [Marked(f"Note: {warning}", "watch") for warning in self.warnings]
        lines.append(
            "Each operator is compared on the inputs that it has in this file. Nothing is said of "
            "inputs that these images do not reach, nor of an NPU, which has not run here."
        )
        return lines

    def _tables(self) -> Mapping[str, Table[ComparedOperator]]:
        firsts = {name: self.first_differing(name) for name in self.runtimes}

        def counted(name: str) -> Column[ComparedOperator]:
            def differing(operator: ComparedOperator) -> Cell:
                if name not in operator.counts:
                    return ""
                count = operator.counts[name]
                unexplained = count.own.differing
                found = count.own if unexplained else count.beside_xnnpack
                if not found.differing:
                    return Marked("0", "good")
                words = f"{found.differing:,} by {found.largest:.4g}"
                words += " from the simulation" if unexplained and name != "xnnpack" else ""
                words += ", first" if operator is firsts[name] else ""
                return Marked(words, "bad" if unexplained else "watch")

            return Column(name, differing, number=True)

        all_adds = sum(one.multiply_adds for one in self.operators)
        columns: list[Column[ComparedOperator]] = [
            Column("", lambda one: one.number, str, number=True),
            Column("operator", lambda one: one.kind),
            Column("tensor", lambda one: one.short_tensor, wrap="fold"),
            Column(
                "multiply-adds",
                lambda one: one.multiply_adds / all_adds if one.multiply_adds else None,
                percent(1),
                number=True,
                least_width=100,
            ),
            Column("simulated", lambda one: one.reason or "yes", wrap="fold"),
            Column(
                "codes",
                lambda one: max((count.own.compared for count in one.counts.values()), default=0),
                lambda count: f"{count:,}" if count else "",
                number=True,
            ),
            *map(counted, self.runtimes),
        ]
        return {"Operators": Table(columns=columns, rows=self.operators)}

    def print_to(self, console: Console) -> None:
        """Prints where runtimes differ, and below it the operators and what was not compared."""
        for note in (self._headline(), self._extent, *self._answers()):
            say(console, marked_text(note))
        for table in self._tables().values():
            console.print(table.for_width(console.width).to_rich())
        for note in self._remarks():
            say(console, marked_text(note))

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Writes all of it as one HTML page; the file appears whole, or not at all."""
        page = render_page(
            "export/foreign/operators.html",
            file=self.file,
            headline=self._headline(),
            extent=self._extent,
            answers=self._answers(),
            tables={title: table.to_html(title) for title, table in self._tables().items()},
            remarks=self._remarks(),
        )
        write_text(path, page)
