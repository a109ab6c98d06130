"""Bits where they pay: the policy with the least estimated loss within a budget, proven."""

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.analysis.allocation import costs as bit_costs
from sat_tf.analysis.allocation.allocated_model import (
    AllocatedLayer,
    AllocatedModel,
    Proof,
    Total,
)
from sat_tf.analysis.allocation.budget import read_budget
from sat_tf.analysis.allocation.choices import LayerChoices, ModelChoices
from sat_tf.analysis.allocation.knapsack import Solution, solve
from sat_tf.analysis.allocation.problem import BitProblem, make_problem, unreachable
from sat_tf.analysis.allocation.show import (
    limits_text,
    print_allocation,
    proof_lines,
    tables,
    write_curve,
)
from sat_tf.analysis.sensitivity.measured_model import Sensitivity
from sat_tf.arguments import Rule, check, is_between, is_integer
from sat_tf.atomic_file import write_text
from sat_tf.export.lowering.packing import NothingPackedError, packing_problem
from sat_tf.graph.network import Network, check_model, check_one_of_each, refuse_wrapped
from sat_tf.planning.explain import is_quantized
from sat_tf.planning.file_size import file_bytes
from sat_tf.presentation.notebook import Displayed
from sat_tf.presentation.tables import RowTable, Table, printed
from sat_tf.qat.policy import BitPolicy, expect_policy

ALL_BITS = tuple(range(2, 9))
USUAL_IMAGES = 256
# How often the file of a solution may be longer than the sum over its layers says.
_MOST_ROUNDS = 8
# How many lengths of files to try that the sum over layers says are a little too long, and may not
# be.
_MOST_RAISED = 30
# The sum may count so many bytes too much of each layer: buffers of a file start at multiples of
# 16, and its tensor is 8 bytes shorter at 8 bits than at fewer.
_MOST_OVER = 16 + 8


COLUMNS = tuple(field.name for field in dataclasses.fields(AllocatedLayer))


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Allocation(Displayed, AllocatedModel, RowTable):
    """The bits of each layer of a model, chosen within a budget.

    See `AllocatedModel` for its attributes.
    """

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer, all with the same keys, in graph order."""
        return [dataclasses.asdict(layer) for layer in self.layers]

    def _columns(self) -> tuple[str, ...]:
        return COLUMNS

    def table(self, *, width: int | None = None) -> str:
        """Layers, totals and the proof as text for the terminal.

        Args:
            width: columns of the terminal; by default as wide as needed.
        """
        return printed(functools.partial(print_allocation, self), width or 120)

    def __str__(self) -> str:
        return self.table()

    def _headline(self) -> str:
        return f"{self.model}: {limits_text(self)}; cost {self.proof.cost:.4g}, {self.proof.status}"

    def _tables(self) -> dict[str, Table[Any]]:
        return tables(self)

    def _notes(self) -> list[str]:
        return proof_lines(self)

    def write_picture(
        self, path: str | os.PathLike[str], over: str | None = None, *, points: int = 25
    ) -> None:
        """Draws the curve, with this choice and the same bits everywhere beside it.

        Args:
            path: ends in .png or .svg; it appears whole, or not at all.
            over: see `curve`.
            points: see `curve`.

        Raises:
            ValueError: the path cannot be written or has another suffix; see `curve`.
        """
        name = self.problem.names[self.row_of(over)]
        write_curve(self, name, lambda: self.curve(name, points=points), path)

    def write_policy(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy as YAML; the file appears whole, or not at all.

        Raises:
            ValueError: the path cannot be written.
        """
        write_text(path, self.policy_yaml())


def allocate(
    model: keras.Model,
    dataset: Any = None,
    policy: BitPolicy | int | None = None,
    *,
    budget: Mapping[str, Any],
    cost: Any = "sensitivity",
    latency: Mapping[str, Any] | None = None,
    weight_bits: Iterable[int] = ALL_BITS,
    activation_bits: Iterable[int] = ALL_BITS,
    pack: str = "auto",
    num_images: int = USUAL_IMAGES,
    seconds: float | None = None,
    progress: bool = True,
) -> Allocation:
    """Chooses weight and activation bits for each layer: the least loss within a budget.

    minimize Σ cost of each layer's bits, so that the whole model keeps every limit, and tensors
    with one grid have one number of bits. This multiple-choice knapsack is solved exactly, by
    branch and bound; the result says how it is proven.

    What follows the policy's weight_bits and activation_bits is chosen. What the policy settles
    otherwise stays: first and last layers unless first_last_weight_bits=None, streams, images, and
    bits given by overrides. Nothing is trained, and the model is not changed.

    Args:
        model: a Functional or Sequential float model with one input and one output.
        dataset: images, with labels or without, as for `sat_tf.sensitivity`; None with a table of
            costs.
        policy: everything beside the bits that are chosen; see `BitPolicy`.
        budget: limits, at least one, each a number or a share such as "60%" of what the most bits
            need: "bytes" of the file; "ideal_bytes", n · bits / 8, as papers count; of one image
            "bit_operations" (multiply-adds · weight bits · activation bits) and "milliseconds" (by
            `latency`); "average_weight_bits", "average_activation_bits", or "average_bits" for
            both.
        cost: "sensitivity", the measured loss with one layer quantized; what `sat_tf.sensitivity`
            has returned; or a table {layer: {(weight bits, activation bits): cost}}, whose keys may
            be weight bits alone.
        latency: milliseconds of all linear layers, {layer: milliseconds} or a table as for `cost`.
            On LiteRT it hardly depends on bits: activations are int8 whatever their bits, and
            kernels of 4 bits run at nearly the speed of 8.
        weight_bits: to choose from, 1 to 8.
        activation_bits: to choose from, 1 to 8.
        pack: how the file stores kernels, as for `export_tflite`: with "auto", those of dense
            layers and 1x1 convolutions have 4 bits where their codes fit, all others 8.
        num_images: how many images to take at most.
        seconds: the most time to take for the proof; by default as much as it needs.
        progress: show a bar if it takes more than two seconds, on a terminal or in a notebook.

    Returns:
        An `Allocation`: the `policy`, and a table of layers, totals and the proof.

    Raises:
        ValueError: an invalid argument; a budget that no choice keeps, with the smallest possible
            value of each limit; a `pack` that `export_tflite` would refuse, because it packs no
            kernel of the choice, or of any; a table with problems, all of which are listed; a model
            that cannot be quantized or has nothing to choose; data that do not fit, or give NaN.

    Example:
        found = sat_tf.allocate(model, (images, labels), budget={"bytes": 500_000})
        quantized = sat_tf.quantize_model(model, found.policy)
    """
    policy = BitPolicy() if policy is None else expect_policy(policy)
    limits = read_budget(budget, has_latency=latency is not None)
    bits = {
        "weight_bits": _bits("weight_bits", weight_bits),
        "activation_bits": _bits("activation_bits", activation_bits),
    }
    _check_cost(cost, dataset)
    if problem_of_pack := packing_problem(pack):
        raise ValueError(problem_of_pack)
    check(
        "allocate",
        [
            Rule(
                "num_images", num_images, is_integer(num_images, lowest=2), "2 or more", "pass 64"
            ),
            Rule(
                "seconds",
                seconds,
                seconds is None or is_between(seconds, 0.0, math.inf),
                "a number above 0, or None",
                "pass None for a whole proof",
            ),
        ],
    )
    check_model(model)
    refuse_wrapped(model)
    if is_quantized(Network(model)):
        raise ValueError(
            f"model {model.name!r}: received a quantized model, expected the float model it was "
            "made from; give that."
        )
    check_one_of_each(model)
    choices = ModelChoices(model, policy, **bits, pack=pack)
    milliseconds = None if latency is None else bit_costs.of_latency(latency, choices.layers)
    # Before anything is measured, which takes long.
    zeros = [[0.0] * len(layer.choices) for layer in choices.layers]
    problem = make_problem(choices, zeros, limits, milliseconds)
    if solve(_raised(problem, choices).knapsack) is None:
        raise unreachable(problem)
    values = _costs(cost, model, dataset, choices, bits, num_images, progress)
    problem = make_problem(choices, values, limits, milliseconds)
    kind = "sensitivity" if isinstance(cost, str | Sensitivity) else "table"
    return _solved(model, choices, problem, pack, kind, seconds)


def _solved(
    model: keras.Model,
    choices: ModelChoices,
    problem: BitProblem,
    pack: str,
    cost_kind: str,
    seconds: float | None,
) -> Allocation:
    """Solves a problem, so that the real file keeps the limit on its bytes.

    A file is shorter or longer than the sum over its layers by its alignment, and by entries that
    it has once for all layers. So the limit on the sum is first raised by the most of that, and
    choices are tried from the cheapest on, until the file of one keeps the real limit: no choice
    that is left out is cheaper. With one whose file is too long go all whose files are as long.
    Where too many do not keep it, the limit on the sum is no longer raised, and lowered where that
    is not enough. The proof then holds for files that are shorter by as much.
    """
    limits = dict(zip(problem.names, map(float, problem.knapsack.limits), strict=True))
    margin, real = 0, 0
    excluded: list[np.ndarray] = []
    lengths: np.ndarray | None = None
    counts = not choices.file_problem and math.isfinite(limits["bytes"])
    slack = _slack(choices) if counts else 0
    for attempt in range(_MOST_RAISED + _MOST_ROUNDS):
        if counts and attempt == _MOST_RAISED:
            margin = slack
        lowered = problem
        if counts:
            lowered = problem.with_limit("bytes", limits["bytes"] + slack - margin)
        solution = solve(lowered.knapsack, seconds=seconds, excluded=excluded)
        if solution is None:
            raise unreachable(problem)
        policy = choices.policy_of(problem.chosen(solution.chosen))
        if choices.file_problem:
            break
        try:
            real = file_bytes(model, policy, pack=pack)
        except NothingPackedError as error:
            raise _unpacked(pack) from error
        if real <= limits["bytes"]:
            break
        if lengths is None:
            lengths = _lengths(model, choices, problem, pack)
        excluded.append(_as_long(problem, lengths, solution.chosen))
        if attempt >= _MOST_RAISED:
            margin += max(1, int(np.ceil(real - limits["bytes"])))
    else:
        raise RuntimeError(
            f"the file has {real:,} bytes, more than the limit, in {_MOST_ROUNDS} attempts to keep "
            "it; this is a defect of the sum over layers; lower the limit."
        )
    totals = _totals(problem, solution, limits)
    if "bytes" in totals:
        of_sum = totals["bytes"]
        totals["bytes"] = dataclasses.replace(
            of_sum,
            value=float(real),
            fewest=min(of_sum.fewest, float(real)),
            most=max(of_sum.most, float(real)),
        )
    return Allocation(
        model=model.name,
        policy=policy,
        layers=tuple(_rows(choices, problem, solution)),
        totals=totals,
        proof=Proof(
            status=solution.status,
            cost=solution.cost,
            bound=solution.bound,
            gap=solution.gap,
            margin=margin,
        ),
        cost_kind=cost_kind,
        pack=pack,
        problem=problem,
        solution=solution,
    )


def _unpacked(pack: str) -> ValueError:
    """The error for a budget within which no kernel has to be packed."""
    return ValueError(
        f"allocate, pack={pack!r}: received a budget that the choice of the least cost keeps with "
        "8 bits in all kernels of the file, which export_tflite refuses with this packing, "
        "expected one that takes fewer; lower a limit, such as average_weight_bits, or use "
        "pack='auto'."
    )


def _lengths(
    model: keras.Model, choices: ModelChoices, problem: BitProblem, pack: str
) -> np.ndarray:
    """A number for each option: options of a layer with the same one make files equally long.

    Activation bits are alike where files with these everywhere are.
    """
    lowest = min((own for own, _ in problem.choices if own is not None), default=0)
    of_bits: dict[int | None, int] = {None: 0}
    for bits in {read for _, read in problem.choices if read is not None}:
        try:
            of_bits[bits] = file_bytes(model, choices.policy_at(lowest, bits), pack=pack)
        except NothingPackedError:  # at these weight bits: each number is by itself
            of_bits[bits] = -bits
    bytes_of_weights = problem.knapsack.usage[problem.names.index("bytes")]
    pairs = np.array(
        [
            (own, of_bits[read])
            for own, (_, read) in zip(bytes_of_weights, problem.choices, strict=True)
        ]
    )
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)


def _as_long(problem: BitProblem, lengths: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The options of each layer that make a file as long as the chosen ones do."""
    of_item = np.empty(problem.knapsack.num_items, lengths.dtype)
    of_item[problem.knapsack.item[chosen]] = lengths[chosen]
    return np.flatnonzero(lengths == of_item[problem.knapsack.item])


def _slack(choices: ModelChoices) -> int:
    """The bytes by which the sum over layers may be longer than the file."""
    return _MOST_OVER * (len(choices.layers) + 1)


def _raised(problem: BitProblem, choices: ModelChoices) -> BitProblem:
    """The problem with the limit on the sum of bytes raised by what the file may be shorter."""
    if "bytes" not in problem.names:
        return problem
    limit = float(problem.knapsack.limits[problem.names.index("bytes")])
    return problem.with_limit("bytes", limit + _slack(choices))


def _totals(
    problem: BitProblem, solution: Solution, limits: Mapping[str, float]
) -> dict[str, Total]:
    knapsack = problem.knapsack
    items = [knapsack.options(item) for item in range(knapsack.num_items)]
    totals = {}
    for row, name in enumerate(problem.names):
        usage, base = knapsack.usage[row], float(knapsack.base[row])
        totals[name] = Total(
            name=name,
            value=float(solution.used[row]),
            limit=limits[name] if np.isfinite(limits[name]) else None,
            fewest=base + float(sum(usage[options].min() for options in items)),
            most=base + float(sum(usage[options].max() for options in items)),
        )
    return totals


def _rows(
    choices: ModelChoices, problem: BitProblem, solution: Solution
) -> Iterable[AllocatedLayer]:
    usage = dict(zip(problem.names, problem.knapsack.usage, strict=True))
    for layer, option in zip(choices.layers, solution.chosen, strict=True):
        weight_bits, activation_bits = problem.choices[option]
        tied = [
            other.name
            for other in choices.layers
            if other is not layer and layer.tie >= 0 and other.tie == layer.tie
        ]
        yield AllocatedLayer(
            name=layer.name,
            kind=layer.kind,
            weight_bits=weight_bits,
            activation_bits=activation_bits,
            chosen=_CHOSEN[layer.chooses_weights, layer.chooses_activations],
            tied=", ".join(tied),
            num_weights=layer.num_weights,
            bytes=choices.kernel_bytes(layer, weight_bits),
            ideal_bytes=layer.ideal_bytes((weight_bits, activation_bits)),
            bit_operations=_used(usage, "bit_operations", option),
            milliseconds=_used(usage, "milliseconds", option),
            cost=float(problem.knapsack.cost[option]),
        )


_CHOSEN = {
    (True, True): "both",
    (True, False): "weights",
    (False, True): "activations",
    (False, False): "neither",
}


def _used(usage: Mapping[str, np.ndarray], name: str, option: int) -> float | None:
    return float(usage[name][option]) if name in usage else None


def _bits(name: str, given: Any) -> tuple[int, ...]:
    """The numbers of bits to choose from, ascending, each once."""
    values = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not values or not all(is_integer(value, lowest=1, limit=9) for value in values):
        raise ValueError(
            f"{name}={given!r}: expected integers from 1 to 8 to choose from, such as (2, 4, 8)."
        )
    return tuple(sorted({int(value) for value in values}))


def _check_cost(cost: Any, dataset: Any) -> None:
    if isinstance(cost, str):
        if cost != "sensitivity":
            raise ValueError(
                f"cost={cost!r}: expected 'sensitivity', what sat_tf.sensitivity has returned, or "
                "a table of costs; pass one of them."
            )
        if dataset is None:
            raise ValueError(
                f"cost={cost!r}: received no dataset, expected images, on which it is measured; "
                "give some, or a table of costs."
            )
    elif not isinstance(cost, Sensitivity | Mapping):
        raise ValueError(
            f"cost: received {type(cost).__name__}, expected 'sensitivity', what "
            "sat_tf.sensitivity has returned, or a table {layer: {(weight bits, activation bits): "
            "cost}}."
        )


def _costs(
    cost: Any,
    model: keras.Model,
    dataset: Any,
    choices: ModelChoices,
    bits: Mapping[str, tuple[int, ...]],
    num_images: int,
    progress: bool,
) -> bit_costs.Costs:
    layers: tuple[LayerChoices, ...] = choices.layers
    if isinstance(cost, Sensitivity):
        return bit_costs.of_sensitivity(cost, layers)
    if not isinstance(cost, str):
        return bit_costs.of_table(cost, layers)
    fewest = choices.policy_at(min(bits["weight_bits"]), min(bits["activation_bits"]))
    return bit_costs.measured(
        model, dataset, fewest, layers, num_images=num_images, progress=progress
    )
