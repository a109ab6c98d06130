"""Bits where they pay: the policy with the least estimated loss within a budget, proven."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import tf_keras as keras
from pydantic import Field

from sat_tf.analysis.allocation.budget import LIMITS, read_budget
from sat_tf.analysis.allocation.choices import Choice, ModelChoices
from sat_tf.analysis.allocation.costs import of_sensitivity, of_table
from sat_tf.analysis.allocation.knapsack import Knapsack, Solution, solve
from sat_tf.analysis.allocation.npu import milliseconds_of, read_npu
from sat_tf.analysis.allocation.result import AllocatedLayer, Allocation, Proof, Total
from sat_tf.analysis.sensitivity.measured_model import Sensitivity
from sat_tf.analysis.sensitivity.sensitivity import refuse_all_but_float, sensitivity
from sat_tf.export.lowering.packing import NothingPackedError, packing_problem
from sat_tf.messages import ProblemsError, instead_of, shortened
from sat_tf.planning.file_size import file_bytes
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.validation import check, is_integer

ALL_BITS = tuple(range(2, 9))
USUAL_IMAGES = 256
# The file may be shorter than the sum over layers by some tens of bytes, or longer by fewer. The
# limit on the sum is first raised by so many, so that nothing that fits is left out; if the file of
# the choice is too long, it is lowered.
_BYTES_ASIDE = (64, 0, -16, -64, -512)
# A tensor of fewer bits is clipped by its operator, which has an option more in the file.
_UNCLIPPED_BITS, _CLIPPING_BYTES = 8, 4


@dataclasses.dataclass(frozen=True, eq=False)
class BitProblem:
    """The knapsack of a model."""

    choices: ModelChoices  # What can be chosen.
    options: Sequence[AllocatedLayer]  # Those of the knapsack, which has an item for each layer.
    # What is used whatever is chosen counts with the first item.
    knapsack: Knapsack
    units: Mapping[str, float]  # What each quantity is counted in.

    def chosen(self, options: np.ndarray) -> dict[str, Choice]:
        """Returns the bits of each layer."""
        rows = [self.options[option] for option in options]
        return {row.name: (row.weight_bits, row.activation_bits) for row in rows}

    def totals(self, options: np.ndarray, length: int | None) -> dict[str, Total]:
        """Returns what the options use, with the bytes of the real file."""
        used = self.knapsack.used(options) | ({} if length is None else {"bytes": length})
        totals = {}
        for name, unit in self.units.items():
            fewest, most = self.knapsack.ends(name)
            limit = self.knapsack.limits.get(name)
            totals[name] = Total(
                name=name,
                value=float(used[name] / unit),
                limit=None if limit is None else limit / unit,
                fewest=min(fewest, used[name]) / unit,
                most=max(most, used[name]) / unit,
            )
        return totals

    def solved(self, bytes_aside: int) -> Solution:
        """Returns the solution with a limit on bytes that is higher by so many.

        Raises:
            ValueError: no choice keeps the limits; with the smallest possible value of each.
        """
        limits = dict(self.knapsack.limits)
        if "bytes" in limits:
            limits["bytes"] += bytes_aside
        solution = solve(dataclasses.replace(self.knapsack, limits=limits))
        if solution is not None:
            return solution
        least = {name: self.knapsack.ends(name)[0] for name in self.knapsack.limits}
        too_low = [name for name, limit in self.knapsack.limits.items() if least[name] > limit]
        problems = [
            f"{name}={LIMITS[name].show(self.knapsack.limits[name] / self.units[name])}: the "
            f"smallest possible is {LIMITS[name].show(least[name] / self.units[name])}"
            f"{'' if too_low else ', without the others'}"
            f"{' (some bytes more or less)' if name == 'bytes' else ''}."
            for name in too_low or least
        ]
        raise ProblemsError(
            "budget: received limits that no choice of bits keeps",
            problems,
            "Expected at least these; raise them, allow fewer weight_bits (or activation_bits, "
            "which hardly change the bytes of a file), or let the ends be chosen for too, by "
            "first_last_weight_bits=None.",
        )


def make_problem(
    choices: ModelChoices,
    limits: Mapping[str, float | str],
    milliseconds: Sequence[float] | None = None,
) -> BitProblem:
    """Returns the knapsack of a model, whose options cost nothing yet."""
    layers, sizes = choices.layers, choices.sizes
    places = [index for index, layer in enumerate(layers) for _ in layer.choices]
    options = [
        AllocatedLayer(
            name=layer.name,
            kind=layer.kind,
            weight_bits=bits,
            activation_bits=read,
            chosen=layer.chosen,
            tied=", ".join(
                other.name for other in layers if other.tie == layer.tie >= 0 and other != layer
            ),
            num_weights=layer.num_weights,
            bytes=None if sizes is None else sizes.kernel_bytes(layer.name, bits),
            milliseconds=None,
            cost=0.0,
        )
        for layer in layers
        for bits, read in layer.choices
    ]
    usage: dict[str, Sequence[float]] = {
        "average_weight_bits": [row.num_weights * (row.weight_bits or 0) for row in options]
    }
    units = {"average_weight_bits": sum(row.num_weights for row in layers if row.usual_bits) or 1}
    if sizes is not None:
        free = [layer for layer in layers if layer.chooses_activations]
        # The clipping of a tensor with several readers counts with the first one.
        first = {layer.tie if layer.tie >= 0 else layer.name: layer for layer in reversed(free)}
        clipped = {
            layer.name for layer in first.values() if _UNCLIPPED_BITS in layer.activation_bits
        }
        usage["bytes"] = [
            sizes.added(row.name, row.weight_bits)
            + (sizes.base if place == 0 else 0)
            + _CLIPPING_BYTES * (row.name in clipped and row.activation_bits != _UNCLIPPED_BITS)
            for place, row in zip(places, options, strict=True)
        ]
    if milliseconds is not None:
        usage["milliseconds"] = milliseconds
        options = [
            dataclasses.replace(row, milliseconds=own)
            for row, own in zip(options, milliseconds, strict=True)
        ]
    values = [layer.values_read for layer in layers]
    if None not in values and choices.policy.activation_bits is not None:
        usage["average_activation_bits"] = [
            (values[place] or 0) * (row.activation_bits or 0)
            for place, row in zip(places, options, strict=True)
        ]
        units["average_activation_bits"] = sum(filter(None, values)) or 1
    unknown = {
        "bytes": f"there is no file: {choices.file_problem}",
        "average_activation_bits": "received a model of open image sizes, expected one whose "
        "values can be counted; build it for one size, or leave this limit out."
        if choices.policy.activation_bits is not None
        else "received a policy with activation_bits=None, whose activations are float, expected "
        "bits; set activation_bits, or limit average_weight_bits.",
    }
    if problems := [f"{name}: {unknown[name]}" for name in limits if name not in usage]:
        raise ProblemsError("budget", problems)
    units = {name: units.get(name, 1) for name in LIMITS if name in usage}
    knapsack = Knapsack(
        item=np.array(places),
        cost=np.zeros(len(options)),
        usage={name: np.array(usage[name], np.float64) for name in units},
        limits={},
        level=np.array([row.activation_bits or 0 for row in options]),
        tie=np.array([layer.tie if layer.chooses_activations else -1 for layer in layers]),
    )
    known = {}
    for name, limit in limits.items():
        if isinstance(limit, str):
            known[name] = float(limit[:-1]) / 100.0 * knapsack.ends(name)[1]
        else:
            known[name] = limit * units[name]
    return BitProblem(choices, options, dataclasses.replace(knapsack, limits=known), units)


_Enough = Annotated[int, Field(ge=2, description="2 or more; pass 64")]


def allocate(
    model: keras.Model,
    dataset: Any = None,
    policy: BitPolicy | int | None = None,
    *,
    budget: Mapping[str, Any],
    cost: Any = "sensitivity",
    npu: str | Mapping[str, Any] | None = None,
    weight_bits: Iterable[int] = ALL_BITS,
    activation_bits: Iterable[int] = ALL_BITS,
    pack: str = "auto",
    num_images: int = USUAL_IMAGES,
    progress: bool = True,
    **removed: Any,
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
        policy: everything beside the bits that are chosen; see `BitPolicy`. Where it names no
            weights, they are DoReFa's at all bits, in what is proposed too.
        budget: limits, at least one, each a number or a share such as "60%" of what the most bits
            need: "bytes" of the file; "milliseconds" of one image on the `npu`;
            "average_weight_bits", "average_activation_bits", or "average_bits" for both.
        cost: "sensitivity", the measured loss with one layer quantized; what `sat_tf.sensitivity`
            has returned; or a table {layer: {(weight bits, activation bits): cost}}, whose keys may
            be weight bits alone.
        npu: an Ethos-U, such as "ethos-u55-128", or a mapping with the arguments of
            `sat_tf.export.targets.ethos_u.compile_file` that name it and its memories. Arm's
            compiler, of the extra `[ethos]`, then estimates the milliseconds of layers: a file is
            compiled for each of `weight_bits`. The policy gets its target.
        weight_bits: to choose from, 1 to 8.
        activation_bits: to choose from, 1 to 8.
        pack: how the file stores kernels, as for `export_tflite`: with "auto", those of dense
            layers and 1x1 convolutions have 4 bits where their codes fit, all others 8.
        num_images: how many images to take at most.
        progress: show a bar on a terminal or in a notebook, and elsewhere a line a minute.
        **removed: arguments of earlier versions, which are refused.

    Returns:
        An `Allocation`: the `policy`, and a table of layers, totals and the proof.

    Raises:
        ImportError: there is an `npu`, and its compiler is not installed.
        TypeError: an argument that there is not; says what to use in place of removed ones.
        ValueError: an invalid argument; a budget that no choice keeps, with the smallest possible
            value of each limit; a `pack` that `export_tflite` would refuse, because it packs no
            kernel of the choice, or of any; a table with problems, all of which are listed; a model
            that cannot be quantized or has nothing to choose; data that do not fit, or give NaN.

    Example:
        found = sat_tf.allocate(model, (images, labels), budget={"bytes": 500_000})
        quantized = sat_tf.quantize_model(model, found.policy)
    """
    if removed:
        known = [name for name in allocate.__annotations__ if name not in ("removed", "return")]
        fixes = (
            f"{name} is not an argument{instead_of(f'allocate.{name}', known)}" for name in removed
        )
        raise TypeError(str(ProblemsError("allocate", fixes)))
    policy = expect_policy(BitPolicy.mobile() if policy is None else policy).of_one_kind()
    limits = read_budget(budget, npu=npu is not None)
    if npu is not None:
        npu, policy = read_npu(npu, policy)
    weight_bits = _bits("weight_bits", weight_bits)
    activation_bits = _bits("activation_bits", activation_bits)
    _check_cost(cost, dataset)
    if problem_of_pack := packing_problem(pack):
        raise ValueError(f"pack: {problem_of_pack}")
    check("allocate", num_images=(num_images, _Enough))
    refuse_all_but_float(model)
    choices = ModelChoices(model, policy, weight_bits, activation_bits, pack=pack)
    milliseconds = None if npu is None else milliseconds_of(model, choices, weight_bits, npu)
    problem = make_problem(choices, limits, milliseconds)
    problem.solved(_BYTES_ASIDE[0])  # before anything is measured, which takes long
    is_measured = isinstance(cost, str)
    if is_measured:
        fewest = choices.policy_at(min(weight_bits), min(activation_bits))
        cost = sensitivity(model, dataset, fewest, num_images=num_images, progress=progress)
    is_table = isinstance(cost, Mapping)
    costs = (of_table if is_table else of_sensitivity)(cost, choices.layers)
    if is_measured and not any(map(any, costs)):
        raise ValueError(
            "cost='sensitivity': received images on which no number of bits changes anything, by "
            "which all bits would cost the same; give images as the model is used with."
        )
    problem.knapsack.cost[:] = [cost for of_layer in costs for cost in of_layer]
    solution, policy, length = _solved(model, problem, pack)
    return Allocation(
        model=model.name,
        policy=policy,
        layers=tuple(
            dataclasses.replace(problem.options[option], cost=float(problem.knapsack.cost[option]))
            for option in solution.chosen
        ),
        totals=problem.totals(solution.chosen, length),
        proof=Proof(cost=solution.cost, bound=solution.bound),
        cost_kind="table" if is_table else "sensitivity",
        pack=pack,
    )


def _solved(
    model: keras.Model, problem: BitProblem, pack: str
) -> tuple[Solution, BitPolicy, int | None]:
    """Returns the solution, its policy, and the bytes of its file, which keep their limit.

    The bound is that of the first limit on the sum of bytes, which leaves out nothing that fits.
    """
    bounds = []
    for aside in _BYTES_ASIDE:
        solution = problem.solved(aside)
        bounds.append(solution.bound)
        policy = problem.choices.policy_of(problem.chosen(solution.chosen))
        if problem.choices.sizes is None:
            return solution, policy, None
        try:
            length = file_bytes(model, policy, pack=pack)
        except NothingPackedError as error:
            raise ValueError(
                f"allocate, pack={pack!r}: received a budget that the choice of the least cost "
                "keeps with 8 bits in all kernels of the file, which export_tflite refuses with "
                "this packing, expected one that takes fewer; lower a limit, such as "
                "average_weight_bits, or use pack='auto'."
            ) from error
        limit = problem.knapsack.limits.get("bytes", math.inf)
        if length <= limit:
            return dataclasses.replace(solution, bound=bounds[0]), policy, length
    raise RuntimeError(
        f"the file has {length:,} bytes, expected {limit:,.0f} at most: this is a defect of the "
        "sum over layers; lower the limit."
    )


def _bits(name: str, given: Any) -> tuple[int, ...]:
    """Returns the numbers of bits to choose from, ascending, each once."""
    values = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not values or not all(is_integer(value, lowest=1, limit=9) for value in values):
        raise ValueError(
            f"{name}={given!r}: expected integers from 1 to 8 to choose from, such as (2, 4, 8)."
        )
    return tuple(sorted({int(value) for value in values}))


def _check_cost(cost: Any, dataset: Any) -> None:
    if isinstance(cost, str) and cost == "sensitivity" and dataset is None:
        raise ValueError(
            f"cost={cost!r}: received no dataset, expected images, on which it is measured; give "
            "some, or a table of costs."
        )
    if cost != "sensitivity" and not isinstance(cost, Sensitivity | Mapping):
        raise ValueError(
            f"cost={shortened(repr(cost))}: expected 'sensitivity', what sat_tf.sensitivity has "
            "returned, or a table {layer: {(weight bits, activation bits): cost}}."
        )
