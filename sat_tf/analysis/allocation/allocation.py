"""Bits where they pay: the policy with the least estimated loss within a budget, proven."""

import collections
import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras
import yaml

from sat_tf.analysis.allocation.budget import LIMITS, Knapsack, Solution, read_budget, solve
from sat_tf.analysis.allocation.choices import (
    Choice,
    LayerChoices,
    ModelChoices,
    milliseconds_of,
    read_npu,
)
from sat_tf.analysis.sensitivity import USUAL_IMAGES, refuse_all_but_float, sensitivity
from sat_tf.analysis.sensitivity_result import MOST_BITS, Sensitivity
from sat_tf.arguments import is_integer, is_number
from sat_tf.either_keras import for_keras3
from sat_tf.files import write_text
from sat_tf.graph.network import layer_of_call
from sat_tf.messages import ProblemsError, did_you_mean, first_ones, shortened, with_hint
from sat_tf.messages.tables import Column, RowTable, Table, digits
from sat_tf.planning.file_size import file_bytes
from sat_tf.qat.policy import BitPolicy, expect_policy

ALL_BITS = tuple(range(2, 9))
# A file may be shorter than the sum over its layers by some tens of bytes: the limit on the sum is
# raised by this, so that no choice that fits is left out.
_BYTES_ASIDE = 64
_CLIPPING_BYTES = 4  # A tensor of fewer bits than 8 is clipped, by one option more in the file.
_NANOSECONDS = 1e6  # In a millisecond: the solver adds up integers.

_NONE = "-"
# Narrower terminals have no columns for the kind and the ties; the CSV has them.
_WIDE = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatedLayer:
    """The bits of one linear layer, and their bytes, time and cost."""

    name: str  # The layer's name.
    kind: str  # Its class.
    weight_bits: int | None  # Bits of its kernel; None if that is not rounded.
    activation_bits: int | None  # Bits of its input; None if that is float.
    chosen: str  # The chosen bits: "both", "weights", "activations" or "neither".
    tied: str  # The other layers that read the same grid, with commas between them.
    num_weights: int  # The number of weights in its kernel.
    bytes: int | None  # Bytes of its codes in the file; None without a file.
    milliseconds: float | None  # Its time on the NPU; None without one.
    cost: float  # Estimated loss of this choice.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Total:
    """The sum of one quantity over the whole model."""

    name: str  # The quantity's name in a budget.
    value: float  # The value of the chosen policy; file bytes are those of the real file.
    limit: float | None  # The most that was allowed; None without a limit.
    fewest: float  # The value with the fewest bits everywhere.
    most: float  # The value with the most bits everywhere.

    def show(self, field: str) -> str:
        """Returns one of the values as readers see it."""
        return digits(LIMITS[self.name].form, _NONE)(getattr(self, field))


_LAYER: list[Column[AllocatedLayer]] = [
    Column("layer", lambda layer: layer.name, wrap="never"),
    Column("kind", lambda layer: layer.kind, wrap="never", least_width=_WIDE),
    Column("weights", lambda layer: layer.weight_bits, digits("", "float"), number=True),
    Column("activations", lambda layer: layer.activation_bits, digits("", "float"), number=True),
    Column("chosen", lambda layer: layer.chosen, wrap="never", least_width=_WIDE),
    Column("kernel bytes", lambda layer: layer.bytes, digits(",", _NONE), number=True),
    Column("ms", lambda layer: layer.milliseconds, digits(".3g", _NONE), number=True),
    Column("cost", lambda layer: layer.cost, digits(".3g"), number=True),
    Column("same grid as", lambda layer: layer.tied or _NONE, least_width=_WIDE),
]
_TOTAL: list[Column[Total]] = [
    Column("", lambda total: LIMITS[total.name].title, wrap="never"),
    Column("used", lambda total: total.show("value"), number=True),
    Column("limit", lambda total: total.show("limit"), number=True),
    Column("fewest bits", lambda total: total.show("fewest"), number=True),
    Column("most bits", lambda total: total.show("most"), number=True),
]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Allocation(RowTable):
    """The bits of each layer of a model, chosen within a budget."""

    COLUMNS = tuple(field.name for field in dataclasses.fields(AllocatedLayer))

    model: str  # The model's name.
    policy: BitPolicy  # The policy to quantize the model by; its overrides are the choice.
    layers: tuple[AllocatedLayer, ...]  # The quantized linear layers, in graph order.
    totals: Mapping[str, Total]  # The model's use of each quantity, by the names of limits.
    proof: Solution  # The proof that no other choice is better.
    cost_kind: str  # The cost that was minimized: "sensitivity" or "table".
    pack: str  # How the file stores kernels.

    def __getitem__(self, name: str) -> AllocatedLayer:
        layers = {layer.name: layer for layer in self.layers}
        if name not in layers:
            raise KeyError(
                f"{name!r} is not a quantized linear layer. {did_you_mean(name, layers)}"
            )
        return layers[name]

    def policy_yaml(self) -> str:
        """Returns the policy as YAML; `BitPolicy(**yaml.safe_load(text))` is the policy."""
        named = {"weight_bits", "activation_bits", "overrides", *self.policy.changes()}
        fields = {name: value for name, value in self.policy.to_dict().items() if name in named}
        return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)

    def write_policy(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy as YAML; the file appears whole, or not at all."""
        write_text(path, self.policy_yaml())

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns a row for each layer, all with the same keys, in graph order."""
        return [dataclasses.asdict(layer) for layer in self.layers]

    def _headline(self) -> str:
        limits = ", ".join(
            f"{LIMITS[name].title} {total.show('value')} of {total.show('limit')}"
            for name, total in self.totals.items()
            if total.limit is not None
        )
        return f"{self.model}: {limits}; cost {self.proof.cost:.4g}, {self.proof.status}"

    def _tables(self) -> dict[str, Table[Any]]:
        layers = Table(columns=_LAYER, rows=self.layers)
        return {
            f"{self.model}: bits by {self.cost_kind}": layers.without_empty(_NONE),
            "the whole model": Table(columns=_TOTAL, rows=list(self.totals.values())),
        }

    def _notes(self) -> list[str]:
        proof = self.proof
        return [
            f"cost {proof.cost:.6g}; no choice within the limits costs less than {proof.bound:.6g}"
            f": {'not proven' if proof.gap else 'proven'} optimal (gap {proof.gap:.2g})."
        ]


class BitProblem:
    """The knapsack of a model: an item for each layer, an option for each pair of its bits.

    Options cost the bytes of their kernels, until costs are known.
    """

    def __init__(
        self,
        choices: ModelChoices,
        limits: Mapping[str, float | str],
        milliseconds: Sequence[float] | None = None,
    ) -> None:
        self.choices = choices
        layers, sizes = choices.layers, choices.sizes
        # The clipping of a tensor with several readers counts with the first one.
        clipped = {layer.tie: layer for layer in reversed(layers) if 8 in layer.activation_bits}
        self.options: list[AllocatedLayer] = []
        used: list[dict[str, int]] = []
        pairs = [(layer, choice) for layer in layers for choice in layer.choices]
        for layer, (weight_bits, activation_bits) in pairs:
            tied = [other.name for other in layers if other.tie == layer.tie and other is not layer]
            option = AllocatedLayer(
                name=layer.name,
                kind=layer.kind,
                weight_bits=weight_bits,
                activation_bits=activation_bits,
                chosen=layer.chosen,
                tied=", ".join(tied),
                num_weights=layer.num_weights,
                bytes=None if sizes is None else sizes.kernel_bytes(layer.name, weight_bits),
                milliseconds=None if milliseconds is None else milliseconds[len(self.options)],
                cost=0.0,
            )
            is_clipped = clipped.get(layer.tie) is layer and activation_bits != 8
            clipping = _CLIPPING_BYTES * is_clipped
            added = 0 if sizes is None else sizes.added(layer.name, weight_bits)
            base = 0 if sizes is None or layer is not layers[0] else sizes.base
            self.options.append(option)
            used.append(
                {
                    "bytes": base + added + clipping,
                    "kernel_bytes": (option.bytes or 0) + clipping,
                    "milliseconds": round(_NANOSECONDS * (option.milliseconds or 0.0)),
                    "average_weight_bits": layer.num_weights * (weight_bits or 0),
                    "average_activation_bits": (layer.values_read or 0) * (activation_bits or 0),
                }
            )
        values = [layer.values_read for layer in layers]
        unknown = {
            "bytes": sizes is None and f"there is no file: {choices.file_problem}",
            "milliseconds": milliseconds is None and "there is no `npu`.",
            "average_activation_bits": (None in values or choices.policy.activation_bits is None)
            and "received open image sizes or activation_bits=None, expected values that can be "
            "counted, and their bits; build the model for one size and set activation_bits, or "
            "leave this limit out.",
        }
        if problems := [f"{name}: {unknown[name]}" for name in limits if unknown.get(name)]:
            raise ProblemsError("budget", problems)
        units = {
            "bytes": 1.0,
            "milliseconds": _NANOSECONDS,
            "average_weight_bits": sum(row.num_weights for row in layers if any(row.weight_bits)),
            "average_activation_bits": sum(filter(None, values)),
        }
        # The divisor from each known usage to its value in a budget.
        self.units = {name: unit or 1.0 for name, unit in units.items() if not unknown.get(name)}
        usage = {name: np.array([option[name] for option in used], np.int64) for name in used[0]}
        absolute: dict[str, float] = {}
        # Usage that no choice changes counts with the first item.
        self.knapsack = Knapsack(
            item=np.repeat(np.arange(len(layers)), [len(layer.choices) for layer in layers]),
            cost=usage["kernel_bytes"].astype(np.float64),
            usage=usage,
            limits=absolute,
            level=np.array([option.activation_bits or 0 for option in self.options]),
            tie=np.array([layer.tie for layer in layers]),
        )
        for name, limit in limits.items():
            if isinstance(limit, str):
                absolute[name] = float(limit[:-1]) / 100.0 * self.knapsack.ends(name)[1]
            else:
                absolute[name] = limit * self.units[name]

    def policy_of(self, choice: np.ndarray) -> BitPolicy:
        """Returns the policy of a choice, an option of each item."""
        options = [self.options[option] for option in choice]
        bits = {option.name: (option.weight_bits, option.activation_bits) for option in options}
        return self.choices.policy_of(bits)

    def totals(self, used: Mapping[str, int]) -> dict[str, Total]:
        """Returns what is used of each quantity, as in a budget."""
        totals = {}
        for name, unit in self.units.items():
            limit, (smallest, largest) = self.knapsack.limits.get(name), self.knapsack.ends(name)
            totals[name] = Total(
                name=name,
                value=used[name] / unit,
                limit=None if limit is None else limit / unit,
                fewest=min(smallest, used[name]) / unit,
                most=max(largest, used[name]) / unit,
            )
        return totals

    def smallest(self) -> Solution | None:
        """Returns the cheapest of the choices with the fewest bytes of kernels.

        In the sum of the bytes that kernels add, a small one may be lost in the file's alignment.
        """
        kernel_bytes = self.knapsack.usage["kernel_bytes"]
        fewest = solve(dataclasses.replace(self.knapsack, cost=kernel_bytes), bytes=math.inf)
        return fewest and solve(self.knapsack, bytes=math.inf, kernel_bytes=fewest.cost)

    def fitting(self, model: keras.Model) -> tuple[Solution, BitPolicy, int]:
        """Returns the cheapest solution whose file keeps its limit, its policy, and its length."""
        knapsack, limits = self.knapsack, self.knapsack.limits
        limit = limits.get("bytes", math.inf)
        lengths: dict[bytes, int] = {}
        solution = bounding = solve(knapsack, bytes=limit + _BYTES_ASIDE)
        if solution is None:  # The smallest file may keep a limit that no sum over layers keeps.
            solution, bounding = self.smallest(), solve(knapsack, bytes=math.inf)
        bound = bounding.bound if bounding else 0.0
        while solution is not None and (key := solution.chosen.tobytes()) not in lengths:
            policy, length = self.policy_of(solution.chosen), 0
            if self.choices.sizes is not None:
                length = file_bytes(model, policy, pack=self.choices.pack)
            if length <= limit:
                return dataclasses.replace(solution, bound=bound), policy, length
            lengths[key] = length
            # The limit on the sum is lowered by the bytes that the file is too long.
            lowered = knapsack.used(solution.chosen)["bytes"] - (length - limit)
            solution = solve(knapsack, bytes=lowered) or self.smallest()
        used = {name: knapsack.ends(name)[0] for name in self.units}
        used["bytes"] = min(lengths.values(), default=0)
        totals = self.totals(used)
        too_low = [name for name, limit in limits.items() if used[name] > limit]
        raise ProblemsError(
            "budget: received limits that no choice of bits keeps",
            [
                f"{name}={totals[name].show('limit')}: the smallest possible is "
                f"{totals[name].show('value')}{'' if too_low else ', without the others'}."
                for name in too_low or (name for name in limits if name != "bytes")
            ],
            "Expected at least these; raise them, allow fewer weight_bits (or activation_bits, "
            "which hardly change the bytes of a file), or let the ends be chosen for too, by "
            "first_last_weight_bits=None.",
        )


def table_of_sensitivity(
    measured: Sensitivity, layers: Sequence[LayerChoices]
) -> dict[str, dict[Choice, float]]:
    """Returns the estimated losses of a measured model as a table, in units that add up.

    The loss from a tensor is assumed to fall with the power of its rounding error. It is the
    divergence of the classes for a classifier, else the squared distance of the outputs.
    """
    # The loss by layer, field of the policy, and bits.
    losses: dict[tuple[str, str, int | None], float] = collections.defaultdict(float)
    for width in measured.widths():
        metric = "distance" if width.damage.divergence is None else "divergence"
        for bits in range(width.bits, MOST_BITS + 1):
            losses[layer_of_call(width.layer), width.field, bits] += width.loss(metric, bits)
    table: dict[str, dict[Choice, float]] = {}
    for layer in layers:
        table[layer.name] = {}
        for choice in layer.choices:
            tensors = [(layer.name, "weight_bits", choice[0])] * layer.chooses_weights
            tensors += [(layer.name, "activation_bits", choice[1])] * layer.chooses_activations
            if all(tensor in losses for tensor in tensors):
                table[layer.name][choice] = math.fsum(losses[tensor] for tensor in tensors)
    return table


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
        cost_of = table.get(layer.name)
        if cost_of is None:
            cost_of = 0.0 if layer.chosen == "neither" else {}
        if not isinstance(cost_of, Mapping):
            cost_of = dict.fromkeys(layer.choices, cost_of)
        for key, cost in cost_of.items():
            pair = key if isinstance(key, tuple) and len(key) == 2 else (key,)
            is_key = all(bits is None or is_integer(bits, lowest=1, limit=9) for bits in pair)
            if not (is_key and is_number(cost) and 0.0 <= float(cost) < math.inf):
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
                "each choice of bits; add them, measure a policy of fewer bits, or allow fewer."
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
    policy = expect_policy(BitPolicy.mobile() if policy is None else policy).of_one_kind()
    limits = read_budget(budget, npu=npu is not None)
    if npu is not None:
        npu, policy = read_npu(npu, policy)
    weight_bits = _bits("weight_bits", weight_bits)
    activation_bits = _bits("activation_bits", activation_bits)
    is_table = isinstance(cost, Mapping)
    is_measured = isinstance(cost, str) and cost == "sensitivity"
    if not (is_table or is_measured or isinstance(cost, Sensitivity)):
        raise ValueError(
            f"cost={shortened(repr(cost))}: expected 'sensitivity', what sat_tf.sensitivity has "
            "returned, or a table {layer: {(weight bits, activation bits): cost}}."
        )
    refuse_all_but_float(model)
    choices = ModelChoices(model, policy, weight_bits, activation_bits, pack=pack)
    milliseconds = None if npu is None else milliseconds_of(model, choices, weight_bits, npu)
    problem = BitProblem(choices, limits, milliseconds)
    knapsack = problem.knapsack
    if is_measured:
        problem.fitting(model)  # Measuring takes long: first, the smallest file is refused.
        fewest = choices.policy_at(min(weight_bits), min(activation_bits))
        cost = sensitivity(model, dataset, fewest, num_images=num_images, progress=progress)
    table = cost if is_table else table_of_sensitivity(cost, choices.layers)
    knapsack.cost[:] = costs_of_table(table, choices.layers)
    if is_measured and not np.any(knapsack.cost):
        raise ValueError(
            "cost='sensitivity': received images on which no number of bits changes anything, by "
            "which all bits would cost the same; give images as the model is used with."
        )
    solution, policy, length = problem.fitting(model)
    return Allocation(
        model=model.name,
        policy=policy,
        layers=tuple(
            dataclasses.replace(problem.options[option], cost=float(knapsack.cost[option]))
            for option in solution.chosen
        ),
        totals=problem.totals({**knapsack.used(solution.chosen), "bytes": length}),
        proof=solution,
        cost_kind="table" if is_table else "sensitivity",
        pack=pack,
    )


def _bits(name: str, values: Any) -> tuple[int, ...]:
    """Returns the numbers of bits to choose from, ascending, each once."""
    listed = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
    if not listed or not all(is_integer(value, lowest=1, limit=9) for value in listed):
        raise ValueError(
            f"{name}={values!r}: expected integers from 1 to 8 to choose from, such as (2, 4, 8)."
        )
    return tuple(sorted({int(value) for value in listed}))
