"""Bits where they pay: the policy with the least estimated loss within a budget, proven."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.analysis.allocation.allocated_model import AllocatedLayer, Allocation, Proof, Total
from sat_tf.analysis.allocation.budget import read_budget, read_values
from sat_tf.analysis.allocation.choices import LayerChoices, ModelChoices
from sat_tf.analysis.allocation.compiled import compiled_usage, read_npu
from sat_tf.analysis.allocation.knapsack import Solution, solve
from sat_tf.analysis.allocation.problem import (
    BitProblem,
    Costs,
    Usage,
    make_problem,
    of_sensitivity,
    unreachable,
)
from sat_tf.analysis.sensitivity.measured_model import Sensitivity
from sat_tf.analysis.sensitivity.sensitivity import refuse_all_but_float, sensitivity
from sat_tf.arguments import Rule, check, is_between, is_integer
from sat_tf.export.lowering.packing import NothingPackedError, packing_problem
from sat_tf.planning.file_size import file_bytes
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


def allocate(
    model: keras.Model,
    dataset: Any = None,
    policy: BitPolicy | int | None = None,
    *,
    budget: Mapping[str, Any],
    cost: Any = "sensitivity",
    latency: Mapping[str, Any] | None = None,
    npu: str | Mapping[str, Any] | None = None,
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
        policy: everything beside the bits that are chosen; see `BitPolicy`. Where it names no
            weights, they are DoReFa's at all bits, in what is proposed too.
        budget: limits, at least one, each a number or a share such as "60%" of what the most bits
            need: "bytes" of the file; "ideal_bytes", n · bits / 8, as papers count; of one image
            "bit_operations" (multiply-adds · weight bits · activation bits) and "milliseconds" (by
            `latency` or `npu`); "compiled_bytes" of the file for the `npu`; "average_weight_bits",
            "average_activation_bits", or "average_bits" for both.
        cost: "sensitivity", the measured loss with one layer quantized; what `sat_tf.sensitivity`
            has returned; or a table {layer: {(weight bits, activation bits): cost}}, whose keys may
            be weight bits alone.
        latency: milliseconds of all linear layers, {layer: milliseconds} or a table as for `cost`.
            On LiteRT it hardly depends on bits: activations are int8 whatever their bits, and
            kernels of 4 bits run at nearly the speed of 8.
        npu: an Ethos-U, such as "ethos-u55-128", or a mapping with the arguments of
            `sat_tf.export.targets.ethos_u.compile_file` that name it and its memories. Arm's
            compiler, of the extra `[ethos]`, then estimates the milliseconds of layers and counts
            their compressed bytes: a file is compiled for each of `weight_bits`. The policy gets
            its target.
        weight_bits: to choose from, 1 to 8.
        activation_bits: to choose from, 1 to 8.
        pack: how the file stores kernels, as for `export_tflite`: with "auto", those of dense
            layers and 1x1 convolutions have 4 bits where their codes fit, all others 8.
        num_images: how many images to take at most.
        seconds: the most time to take for the proof; by default as much as it needs.
        progress: show a bar on a terminal or in a notebook, and elsewhere a line a minute.

    Returns:
        An `Allocation`: the `policy`, and a table of layers, totals and the proof.

    Raises:
        ImportError: there is an `npu`, and its compiler is not installed.
        ValueError: an invalid argument; a budget that no choice keeps, with the smallest possible
            value of each limit; a `pack` that `export_tflite` would refuse, because it packs no
            kernel of the choice, or of any; a table with problems, all of which are listed; a model
            that cannot be quantized or has nothing to choose; data that do not fit, or give NaN.

    Example:
        found = sat_tf.allocate(model, (images, labels), budget={"bytes": 500_000})
        quantized = sat_tf.quantize_model(model, found.policy)
    """
    policy = expect_policy(BitPolicy.mobile() if policy is None else policy).of_one_kind()
    known = {"milliseconds": latency is not None or npu is not None, "compiled_bytes": npu}
    limits = read_budget(budget, [name for name, table in known.items() if table])
    if npu is not None:
        if latency is not None:
            raise ValueError(
                "npu: received `latency` too, expected one source of milliseconds; leave one out."
            )
        npu, policy = read_npu(npu, policy)
    bits = {
        "weight_bits": _bits("weight_bits", weight_bits),
        "activation_bits": _bits("activation_bits", activation_bits),
    }
    _check_cost(cost, dataset)
    if problem_of_pack := packing_problem(pack):
        raise ValueError(f"pack: {problem_of_pack}")
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
    refuse_all_but_float(model)
    choices = ModelChoices(model, policy, **bits, pack=pack)
    tables: dict[str, Usage] = {}
    if latency is not None:
        pairs = {layer.name: layer.choices for layer in choices.layers}
        milliseconds = read_values(latency, pairs, name="latency", unit="milliseconds")
        tables = {"milliseconds": Usage(milliseconds)}
    elif npu is not None:
        tables = compiled_usage(model, choices, bits["weight_bits"], npu)
    # Before anything is measured, which takes long.
    zeros = [[0.0] * len(layer.choices) for layer in choices.layers]
    problem = make_problem(choices, zeros, limits, tables)
    raised = problem
    if "bytes" in problem.names:
        limit = float(problem.knapsack.limits[problem.names.index("bytes")])
        raised = problem.with_limit("bytes", limit + _slack(choices))
    if solve(raised.knapsack) is None:
        raise unreachable(problem)
    values = _costs(cost, model, dataset, choices, bits, num_images, progress)
    problem = make_problem(choices, values, limits, tables)
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
            raise ValueError(
                f"allocate, pack={pack!r}: received a budget that the choice of the least cost "
                "keeps with 8 bits in all kernels of the file, which export_tflite refuses with "
                "this packing, expected one that takes fewer; lower a limit, such as "
                "average_weight_bits, or use pack='auto'."
            ) from error
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
) -> Costs:
    """The costs of each layer's choices, measured where they are not given.

    Raises:
        ValueError: a table has problems; the data do not fit, are a single image, or give NaN.
    """
    layers: tuple[LayerChoices, ...] = choices.layers
    if isinstance(cost, Sensitivity):
        return of_sensitivity(cost, layers)
    if not isinstance(cost, str):
        pairs = {layer.name: layer.choices for layer in layers}
        settled = [
            layer.name
            for layer in layers
            if not (layer.chooses_weights or layer.chooses_activations)
        ]
        return read_values(cost, pairs, name="cost", unit="cost", optional=settled)
    fewest = choices.policy_at(min(bits["weight_bits"]), min(bits["activation_bits"]))
    losses = sensitivity(model, dataset, fewest, num_images=num_images, progress=progress)
    found = of_sensitivity(losses, layers)
    if not any(cost for layer in found for cost in layer):
        raise ValueError(
            "cost='sensitivity': received images on which no number of bits changes anything, by "
            "which all bits would cost the same; give images as the model is used with."
        )
    return found
