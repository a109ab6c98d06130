"""Bits where they pay: the policy with the least estimated loss within a budget, proven."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.analysis.allocation.budget import LIMITS, Knapsack, Solution, read_budget, solve
from sat_tf.analysis.allocation.choices import (
    Choice,
    LayerChoices,
    ModelChoices,
    milliseconds_of,
    read_npu,
)
from sat_tf.analysis.allocation.result import AllocatedLayer, Allocation, Total
from sat_tf.analysis.sensitivity import USUAL_IMAGES, refuse_all_but_float, sensitivity
from sat_tf.analysis.sensitivity_result import MOST_BITS, Sensitivity
from sat_tf.arguments import is_integer, is_number
from sat_tf.either_keras import for_keras3
from sat_tf.export.lowering.packing import NothingPackedError, packing_problem
from sat_tf.graph.network import layer_of_call
from sat_tf.messages import ProblemsError, first_ones, no_such, shortened, with_hint
from sat_tf.planning.file_size import file_bytes
from sat_tf.qat.policy import BitPolicy, expect_policy

ALL_BITS = tuple(range(2, 9))
# A file may be shorter than the sum over its layers by some tens of bytes: the limit on the sum is
# raised by this, so that no choice that fits is left out.
_BYTES_ASIDE = 64
_CLIPPING_BYTES = 4  # A tensor of fewer bits than 8 is clipped, by one option more in the file.
_LARGEST_COST = 1e300  # it keeps sums of many costs finite


@dataclasses.dataclass(frozen=True, eq=False)
class BitProblem:
    """The knapsack of a model: an item for each layer, an option for each pair of its bits."""

    choices: ModelChoices
    options: Sequence[tuple[LayerChoices, Choice]]  # The options of the knapsack.
    knapsack: Knapsack  # Usage that no choice changes counts with the first item.
    units: Mapping[str, float]  # The divisor from each usage to its value in a budget.
    kernel_bytes: np.ndarray  # The bytes of each option in the file, alignment aside.

    def chosen(self, options: np.ndarray) -> dict[str, Choice]:
        """Returns the bits of each layer."""
        return {layer.name: bits for layer, bits in (self.options[option] for option in options)}

    def cheapest(self, most_bytes: float) -> Solution | None:
        """Returns the cheapest choice, with at most `most_bytes` in sum if bytes are limited."""
        limits = {**self.knapsack.limits}
        if "bytes" in limits:
            limits["bytes"] = most_bytes
        return solve(dataclasses.replace(self.knapsack, limits=limits))

    def smallest(self) -> Solution | None:
        """Returns the cheapest of the choices with the fewest bytes of kernels.

        In the sum of the bytes that kernels add, a small one may be lost in the file's alignment.
        """
        limits = {name: limit for name, limit in self.knapsack.limits.items() if name != "bytes"}
        knapsack = dataclasses.replace(
            self.knapsack, usage={**self.knapsack.usage, "bytes": self.kernel_bytes}
        )
        fewest = solve(dataclasses.replace(knapsack, cost=self.kernel_bytes, limits=limits))
        return fewest and solve(
            dataclasses.replace(knapsack, limits={**limits, "bytes": fewest.cost})
        )

    def refusal(self, fewest_bytes: float = 0.0) -> ProblemsError:
        """Returns the error that no choice keeps the limits; files have `fewest_bytes` or more."""
        limits = self.knapsack.limits
        least = {name: self.knapsack.ends(name)[0] for name in limits}
        if "bytes" in limits:
            least["bytes"] = fewest_bytes or least["bytes"]
        too_low = [name for name, limit in limits.items() if least[name] > limit]
        problems = [
            f"{name}={LIMITS[name].show(limits[name] / self.units[name])}: the "
            f"smallest possible is {LIMITS[name].show(least[name] / self.units[name])}"
            f"{'' if too_low else ', without the others'}"
            f"{' (some bytes more or less)' if name == 'bytes' and not fewest_bytes else ''}."
            for name in too_low or least
        ]
        return ProblemsError(
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
    options = [(layer, bits) for layer in layers for bits in layer.choices]
    usage: dict[str, Sequence[float]] = {}
    units: dict[str, float] = {}
    unknown = {"bytes": f"there is no file: {choices.file_problem}"}
    kernel_bytes = np.zeros(len(options))
    if sizes is not None:
        free = [layer for layer in layers if layer.chooses_activations]
        # The clipping of a tensor with several readers counts with the first one.
        by_tie = {layer.tie if layer.tie >= 0 else layer.name: layer for layer in reversed(free)}
        clipped = {layer.name for layer in by_tie.values() if 8 in layer.activation_bits}
        clipping = [
            _CLIPPING_BYTES * (layer.name in clipped and bits != 8) for layer, (_, bits) in options
        ]
        kernel_bytes += clipping
        kernel_bytes += [sizes.kernel_bytes(layer.name, bits) for layer, (bits, _) in options]
        usage["bytes"] = [
            sizes.added(layer.name, bits) + (sizes.base if layer is layers[0] else 0) + clips
            for (layer, (bits, _)), clips in zip(options, clipping, strict=True)
        ]
    if milliseconds is not None:
        usage["milliseconds"] = milliseconds
    usage["average_weight_bits"] = [layer.num_weights * (bits or 0) for layer, (bits, _) in options]
    units["average_weight_bits"] = sum(layer.num_weights for layer in layers if layer.usual_bits)
    values = [layer.values_read for layer in layers]
    if choices.policy.activation_bits is None:
        unknown["average_activation_bits"] = (
            "received a policy with activation_bits=None, whose activations are float, expected "
            "bits; set activation_bits, or limit average_weight_bits."
        )
    elif None in values:
        unknown["average_activation_bits"] = (
            "received a model of open image sizes, expected one whose values can be counted; build "
            "it for one size, or leave this limit out."
        )
    else:
        usage["average_activation_bits"] = [
            (layer.values_read or 0) * (bits or 0) for layer, (_, bits) in options
        ]
        units["average_activation_bits"] = sum(filter(None, values))
    if problems := [f"{name}: {unknown[name]}" for name in limits if name not in usage]:
        raise ProblemsError("budget", problems)
    units = {name: units.get(name, 1) or 1 for name in usage}
    absolute: dict[str, float] = {}
    knapsack = Knapsack(
        item=np.repeat(np.arange(len(layers)), [len(layer.choices) for layer in layers]),
        cost=np.zeros(len(options)),
        usage={name: np.array(used, np.float64) for name, used in usage.items()},
        limits=absolute,
        level=np.array([bits or 0 for _, (_, bits) in options]),
        tie=np.array([layer.tie if layer.chooses_activations else -1 for layer in layers]),
    )
    for name, limit in limits.items():
        if isinstance(limit, str):
            absolute[name] = float(limit[:-1]) / 100.0 * knapsack.ends(name)[1]
        else:
            absolute[name] = limit * units[name]
    return BitProblem(choices, options, knapsack, units, kernel_bytes)


def costs_of_sensitivity(measured: Sensitivity, layers: Sequence[LayerChoices]) -> list[float]:
    """Returns the estimated losses of all choices from a measured model, in units that add up.

    The loss from a tensor is assumed to fall with the power of its rounding error. It is the
    divergence of the classes for a classifier, else the squared distance of the outputs.
    """
    # The loss by layer, field of the policy, and bits.
    of_bits: dict[tuple[str, str, int | None], float] = collections.defaultdict(float)
    for width in measured.widths():
        metric = "distance" if width.damage.divergence is None else "divergence"
        for bits in range(width.bits, MOST_BITS + 1):
            of_bits[layer_of_call(width.layer), width.field, bits] += width.loss(metric, bits)
    problems: list[str] = []
    costs: list[float] = []
    for layer in layers:
        free = {"weight_bits": layer.chooses_weights, "activation_bits": layer.chooses_activations}
        for field in (field for field, is_free in free.items() if is_free):
            every = getattr(layer, field)
            if missing := [bits for bits in every if (layer.name, field, bits) not in of_bits]:
                problems.append(
                    f"{layer.name}: received no {field}={missing[0]} among what was measured, "
                    "expected the fewest bits of the choices and more; measure a policy with "
                    f"{field}={missing[0]} there, or leave those bits out."
                )
        for choice in layer.choices:
            pairs = [(field, bits) for field, bits in zip(free, choice, strict=True) if free[field]]
            costs.append(math.fsum(of_bits[layer.name, field, bits] for field, bits in pairs))
    if problems:
        raise ProblemsError("cost", problems)
    return costs


def costs_of_table(table: Mapping[Any, Any], layers: Sequence[LayerChoices]) -> list[float]:
    """Returns the costs of all choices in a table {layer: {(weight bits, activation bits): cost}}.

    Keys may be weight bits alone, or None for every choice; a number is the cost of every choice.
    """
    names = [layer.name for layer in layers]
    problems = [
        with_hint(f"{name!r} is not a quantized linear layer of the model", str(name), names)
        for name in table
        if name not in names
    ]
    costs: list[Any] = []
    for layer in layers:
        cost_of = table.get(layer.name, None if layer.chosen != "neither" else 0.0)
        if cost_of is None:
            problems.append(f"{layer.name}: received nothing, expected its cost.")
            continue
        if not isinstance(cost_of, Mapping):
            cost_of = dict.fromkeys(layer.choices, cost_of)
        for key, cost in cost_of.items():
            pair = key if isinstance(key, tuple) and len(key) == 2 else (key,)
            is_key = all(bits is None or is_integer(bits, lowest=1, limit=9) for bits in pair)
            if not (is_key and is_number(cost) and 0.0 <= float(cost) <= _LARGEST_COST):
                problems.append(
                    f"{layer.name}[{key!r}]: received {cost!r}, expected a finite number of 0 or "
                    "more for (weight bits, activation bits), or for weight bits; write {(4, 8): "
                    "1.0} or {4: 1.0}."
                )
        of_choices = {
            choice: cost_of.get(choice, cost_of.get(choice[0], cost_of.get(None)))
            for choice in layer.choices
        }
        if missing := [choice for choice, cost in of_choices.items() if cost is None]:
            problems.append(
                f"{layer.name}: received no number for {first_ones(missing, 4)}, expected one for "
                "each choice of bits; add them, or allow fewer bits."
            )
        costs += of_choices.values()
    if problems:
        raise ProblemsError("cost", problems)
    return [float(cost) for cost in costs]


@for_keras3()
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

    Bits that follow the policy's weight_bits and activation_bits are chosen. Bits that it settles
    otherwise stay: first and last layers unless first_last_weight_bits=None, streams, images, and
    bits given by overrides. Nothing is trained, and the model is not changed.

    Args:
        model: a Functional or Sequential float model with one input and one output.
        dataset: images, with labels or without, as for `sat_tf.sensitivity`; None with a table of
            costs.
        policy: everything except the bits that are chosen; see `BitPolicy`. Where it names no
            weights, they are DoReFa's at all bits, in the proposal too.
        budget: limits, at least one, each a number or a share such as "60%" of what the most bits
            need: "bytes" of the file; "milliseconds" of one image on the `npu`;
            "average_weight_bits", "average_activation_bits", or "average_bits" for both.
        cost: "sensitivity", the measured loss with one layer quantized; a result of
            `sat_tf.sensitivity`; or a table {layer: {(weight bits, activation bits): cost}},
            whose keys may be weight bits alone.
        npu: an Ethos-U, such as "ethos-u55-128", or a mapping with the arguments of
            `sat_tf.exact.targets.ethos_u.compile_file` that name it and its memories. Arm's
            compiler, of the extra `[ethos]`, then estimates the milliseconds of layers: a file is
            compiled for each of `weight_bits`. The policy gets its target.
        weight_bits: the weight bits to choose from, 1 to 8.
        activation_bits: the activation bits to choose from, 1 to 8.
        pack: how the file stores kernels, as for `export_tflite`: with "auto", those of dense
            layers and 1x1 convolutions have 4 bits where their codes fit, all others 8.
        num_images: how many images to take at most.
        progress: show a bar on a terminal or in a notebook, and elsewhere a line a minute.
        **removed: arguments of earlier versions, which are refused.

    Returns:
        An `Allocation`: the `policy`, and a table of layers, totals and the proof.

    Raises:
        ImportError: there is an `npu`, and its compiler is not installed.
        ValueError: an invalid argument; a budget that no choice keeps, with the smallest possible
            value of each limit; a `pack` that packs no kernel of the choice; a table with problems;
            a model that cannot be quantized or has nothing to choose; data that do not fit.

    Example:
        found = sat_tf.allocate(model, (images, labels), budget={"bytes": 500_000})
        quantized = sat_tf.quantize_model(model, found.policy)
    """
    if removed:
        names = [name for name in allocate.__annotations__ if name not in ("removed", "return")]
        fixes = (
            no_such(f"{name} is not an argument", f"allocate.{name}", names) for name in removed
        )
        raise TypeError(str(ProblemsError("allocate", fixes)))
    policy = expect_policy(BitPolicy.mobile() if policy is None else policy).of_one_kind()
    limits = read_budget(budget, npu=npu is not None)
    if npu is not None:
        npu, policy = read_npu(npu, policy)
    weight_bits = _bits("weight_bits", weight_bits)
    activation_bits = _bits("activation_bits", activation_bits)
    is_measured, is_table = _is_measured(cost, dataset), isinstance(cost, Mapping)
    if problem_of_pack := packing_problem(pack):
        raise ValueError(f"pack: {problem_of_pack}")
    refuse_all_but_float(model)
    choices = ModelChoices(model, policy, weight_bits, activation_bits, pack=pack)
    milliseconds = None if npu is None else milliseconds_of(model, choices, weight_bits, npu)
    problem = make_problem(choices, limits, milliseconds)
    knapsack = problem.knapsack
    if is_measured:
        # Measuring takes long: whether any choice keeps the limits is found out first.
        if problem.cheapest(knapsack.limits.get("bytes", math.inf) + _BYTES_ASIDE) is None:
            raise problem.refusal()
        fewest = choices.policy_at(min(weight_bits), min(activation_bits))
        cost = sensitivity(model, dataset, fewest, num_images=num_images, progress=progress)
    knapsack.cost[:] = (costs_of_table if is_table else costs_of_sensitivity)(cost, choices.layers)
    if is_measured and not np.any(knapsack.cost):
        raise ValueError(
            "cost='sensitivity': received images on which no number of bits changes anything, by "
            "which all bits would cost the same; give images as the model is used with."
        )
    solution, policy, length = _fitting(model, problem, pack)
    used = knapsack.used(solution.chosen) | ({} if length is None else {"bytes": length})
    totals = {}
    for name, unit in problem.units.items():
        smallest, largest = knapsack.ends(name)
        totals[name] = Total(
            name=name,
            value=float(used[name] / unit),
            limit=knapsack.limits[name] / unit if name in knapsack.limits else None,
            fewest=min(smallest, used[name]) / unit,
            most=max(largest, used[name]) / unit,
        )
    return Allocation(
        model=model.name,
        policy=policy,
        layers=tuple(_allocated_layer(problem, option) for option in solution.chosen),
        totals=totals,
        proof=solution,
        cost_kind="table" if is_table else "sensitivity",
        pack=pack,
    )


def _is_measured(cost: Any, dataset: Any) -> bool:
    """Returns whether costs are measured; raises ValueError where they are of no known form."""
    is_measured = isinstance(cost, str) and cost == "sensitivity"
    if is_measured and dataset is None:
        raise ValueError(
            f"cost={cost!r}: received no dataset, expected images, on which it is measured; give "
            "some, or a table of costs."
        )
    if not (is_measured or isinstance(cost, Mapping | Sensitivity)):
        raise ValueError(
            f"cost={shortened(repr(cost))}: expected 'sensitivity', what sat_tf.sensitivity has "
            "returned, or a table {layer: {(weight bits, activation bits): cost}}."
        )
    return is_measured


def _allocated_layer(problem: BitProblem, option: int) -> AllocatedLayer:
    layer, (weight_bits, activation_bits) = problem.options[option]
    sizes, milliseconds = problem.choices.sizes, problem.knapsack.usage.get("milliseconds")
    tied = [reader.name for reader in problem.choices.layers if reader.tie == layer.tie >= 0]
    return AllocatedLayer(
        name=layer.name,
        kind=layer.kind,
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        chosen=layer.chosen,
        tied=", ".join(name for name in tied if name != layer.name),
        num_weights=layer.num_weights,
        bytes=None if sizes is None else sizes.kernel_bytes(layer.name, weight_bits),
        milliseconds=None if milliseconds is None else float(milliseconds[option]),
        cost=float(problem.knapsack.cost[option]),
    )


def _fitting(
    model: keras.Model, problem: BitProblem, pack: str
) -> tuple[Solution, BitPolicy, int | None]:
    """Returns the cheapest solution whose file keeps its limit, its policy, and its length."""
    limit = problem.knapsack.limits.get("bytes", math.inf)
    lengths: dict[bytes, int] = {}
    solution = bounding = problem.cheapest(limit + _BYTES_ASIDE)
    if solution is None and "bytes" in problem.knapsack.limits:
        # The smallest file may keep a limit that no sum over layers keeps. No choice costs less
        # than the cheapest one of any length.
        solution, bounding = problem.smallest(), problem.cheapest(problem.knapsack.ends("bytes")[1])
    bound = bounding.bound if bounding else 0.0
    while solution is not None and (key := solution.chosen.tobytes()) not in lengths:
        policy = problem.choices.policy_of(problem.chosen(solution.chosen))
        if problem.choices.sizes is None:
            return solution, policy, None
        try:
            lengths[key] = length = file_bytes(model, policy, pack=pack)
        except NothingPackedError as error:
            raise ValueError(
                f"allocate, pack={pack!r}: received a budget that the choice of the least cost "
                "keeps with 8 bits in all kernels of the file, which export_tflite refuses with "
                "this packing, expected one that takes fewer; lower a limit, such as "
                "average_weight_bits, or use pack='auto'."
            ) from error
        if length <= limit:
            return dataclasses.replace(solution, bound=bound), policy, length
        # The limit on the sum is lowered by the bytes that the file is too long.
        lowered = problem.knapsack.used(solution.chosen)["bytes"] - (length - limit)
        solution = problem.cheapest(lowered) or problem.smallest()
    raise problem.refusal(min(lengths.values(), default=0.0))


def _bits(name: str, values: Any) -> tuple[int, ...]:
    """Returns the numbers of bits to choose from, ascending, each once."""
    listed = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    if not listed or not all(is_integer(value, lowest=1, limit=9) for value in listed):
        raise ValueError(
            f"{name}={values!r}: expected integers from 1 to 8 to choose from, such as (2, 4, 8)."
        )
    return tuple(sorted({int(value) for value in listed}))
