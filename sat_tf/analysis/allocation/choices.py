"""The bits that each layer of a model can have; layers that read one tensor share its grid."""

import dataclasses
import glob
import itertools
import math
import pathlib
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras
from scipy.sparse.csgraph import connected_components

from sat_tf.exact.targets.ethos_u import TARGET_OF, compile_file, compiler_options
from sat_tf.export.export import export_tflite
from sat_tf.graph import layer_kinds
from sat_tf.messages import ModelError, ProblemsError, first_ones, warn
from sat_tf.messages.validation import argument_problems
from sat_tf.planning.deployment import assume_ranges
from sat_tf.planning.explain import Source, plan_of, read_source
from sat_tf.planning.file_size import FileSizes
from sat_tf.planning.plan import Fate, LayerPlan, Plan
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.scheme import quantize_model
from sat_tf.qat.wrapper import QuantizedLayer

Choice = tuple[int | None, int | None]  # weight bits and activation bits; None is float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerChoices:
    """One quantized linear layer, and the bits that it can have."""

    name: str  # The layer's name.
    kind: str  # Its class.
    num_weights: int  # The number of weights in its kernel.
    # The weight bits to choose from; those of the policy where it settles them; None is float.
    weight_bits: tuple[int | None, ...]
    activation_bits: tuple[int | None, ...]  # Bits of its input to choose from; None is float.
    chooses_weights: bool  # Whether its weight bits are chosen.
    chooses_activations: bool  # Whether its activation bits are chosen.
    reads_settled: bool  # Whether some call of it reads bits that the policy settles.
    tie: int  # Number of the grid that it reads, which others may share.
    # The number of values that count for the mean of activation bits; None if unknown.
    values_read: int | None

    @property
    def choices(self) -> list[Choice]:
        """All pairs of weight bits and activation bits."""
        return list(itertools.product(self.weight_bits, self.activation_bits))

    @property
    def chosen(self) -> str:
        """The bits that are chosen: "both", "weights", "activations" or "neither"."""
        names = ("neither", "weights", "activations", "both")
        return names[self.chooses_weights + 2 * self.chooses_activations]


class ModelChoices:
    """The choices that a model leaves open."""

    def __init__(
        self,
        model: keras.Model,
        policy: BitPolicy,
        weight_bits: Sequence[int],
        activation_bits: Sequence[int],
        *,
        pack: str = "auto",
    ) -> None:
        self.policy, self.pack = policy, pack
        source = read_source(model, processor=policy.processor)
        self.layers = _layers(source, policy, tuple(weight_bits), tuple(activation_bits))
        if all(layer.chosen == "neither" for layer in self.layers):
            raise ModelError(
                model.name,
                f"received {len(self.layers)} quantized linear layers, whose bits the policy "
                "settles all, expected some that follow its weight_bits or activation_bits, beside "
                "the ends, unless first_last_weight_bits=None, and without overrides of them.",
            )
        for bits in weight_bits:  # a grid or a quantizer may not have them
            uniform = self.policy_at(bits, min(activation_bits))
            place(source.network, source.annotations, uniform, source.kernels)
        self.sizes, self.file_problem = None, ""
        try:
            most_bits = max(activation_bits)
            self.sizes = FileSizes(
                source, lambda bits: self.policy_at(bits, most_bits), weight_bits, pack=pack
            )
        except ValueError as error:
            if pack not in ("auto", "none"):  # which fit a model without a file, too
                raise
            self.file_problem = str(error)

    def policy_of(self, chosen: Mapping[str, Choice]) -> BitPolicy:
        """Returns the policy with the bits of some layers; None leaves the policy's bits."""
        policy = self.policy
        overrides: dict[str, Any] = policy.to_dict()["overrides"]
        for layer in self.layers:
            weight_bits, activation_bits = chosen.get(layer.name, (None, None))
            fields: dict[str, Any] = {}
            if layer.chooses_weights and weight_bits not in (None, policy.weight_bits):
                fields["weight_bits"] = weight_bits
            if layer.chooses_activations and activation_bits not in (None, policy.activation_bits):
                fields["activation_bits"] = activation_bits
                if layer.reads_settled and not policy.requantize_streams:
                    # Bits that are given for a layer would hold for the streams that it reads too.
                    fields["requantize_streams"] = False
            if fields:
                pattern = glob.escape(layer.name)
                # New overrides come after the policy's own, because later patterns win.
                overrides[pattern] = {**overrides.pop(pattern, {}), **fields}
        return _changed(policy, overrides=overrides)

    def policy_at(self, weight_bits: int | None, activation_bits: int | None) -> BitPolicy:
        """Returns the policy with the same bits in all layers whose bits are chosen."""
        return self.policy_of({layer.name: (weight_bits, activation_bits) for layer in self.layers})


def _changed(policy: BitPolicy, **fields: Any) -> BitPolicy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the policy has warned of its grids already
        return dataclasses.replace(policy, **fields)


def _layers(
    source: Source,
    policy: BitPolicy,
    weight_bits: tuple[int, ...],
    activation_bits: tuple[int, ...],
) -> tuple[LayerChoices, ...]:
    """Returns the choices of each layer: bits that follow the policy's differ under another one."""
    rounded = [
        name for name in ("weight_bits", "activation_bits") if getattr(policy, name) is not None
    ]
    other_bits = {name: 3 if getattr(policy, name) == 2 else 2 for name in rounded}
    other_policy = _changed(policy, **other_bits)
    usual, other = plans = [plan_of(source, policy), plan_of(source, other_policy)]
    for plan in plans:
        if plan.problems:
            raise ModelError(plan.model, plan.problems)
    calls: dict[str, list[LayerPlan]] = {}
    for row in other.layers:
        layer = source.network[row.name].layer
        if row.weights is not None and layer_kinds.quantized_kernel(layer):  # a table has 8 bits
            calls.setdefault(layer.name, []).append(row)
    free = {
        name: [row for row in rows if row.reading_bits != usual[row.name].reading_bits]
        for name, rows in calls.items()
    }
    tensors = [{_maker(other, row).name for row in rows} for rows in free.values()]
    shared = np.array([[bool(reads & others) for others in tensors] for reads in tensors])
    layers: list[LayerChoices] = []
    for (name, rows), tie in zip(calls.items(), connected_components(shared)[1], strict=True):
        first = rows[0].name
        bits, changed = (getattr(plan[first].weights, "bits", None) for plan in plans)
        layers.append(
            LayerChoices(
                name=name,
                kind=rows[0].kind,
                num_weights=math.prod(layer_kinds.kernel_of(source.network[first].layer).shape),
                weight_bits=weight_bits if bits != changed else (bits,),
                activation_bits=activation_bits if free[name] else (usual[first].reading_bits,),
                chooses_weights=bits != changed,
                chooses_activations=bool(free[name]),
                reads_settled=len(free[name]) < len(rows),
                tie=int(tie),
                values_read=_values_read(other, rows),
            )
        )
    return tuple(layers)


def _maker(plan: Plan, row: LayerPlan) -> LayerPlan:
    """Returns the row whose quantizer made the codes that a layer reads, past data movement."""
    source = plan[row.reads[0]]
    while source.activation is None and source.reads:
        source = plan[source.reads[0]]
    return source


def _values_read(plan: Plan, rows: Sequence[LayerPlan]) -> int | None:
    """Returns the number of activations that the rows read, without images and streams."""
    values = 0
    for row in rows:
        maker, shape = _maker(plan, row), plan[row.reads[0]].shape
        is_image = any(plan[name].fate is Fate.INPUT for name in maker.reads)
        if maker.activation is not None and not maker.activation.stream and not is_image:
            if None in shape:
                return None
            values += math.prod(size or 0 for size in shape)
    return values


def read_npu(npu: Any, policy: BitPolicy) -> tuple[dict[str, Any], BitPolicy]:
    """Returns the arguments of `compile_file` that name an NPU, and the policy with its target."""
    arguments = dict(npu) if isinstance(npu, Mapping) else {"configuration": npu}
    if problems := argument_problems(compiler_options, arguments):
        raise ProblemsError("npu", problems)
    compiler_options(**arguments)
    target = TARGET_OF[arguments["configuration"]]
    if policy.target not in (None, target):
        raise ValueError(
            f"npu={arguments['configuration']!r}: received a policy with target={policy.target!r}, "
            f"expected {target!r}; give the policy that target."
        )
    return arguments, dataclasses.replace(policy, target=target)


def milliseconds_of(
    model: keras.Model, choices: ModelChoices, weight_bits: Sequence[int], npu: Mapping[str, Any]
) -> list[float]:
    """Returns the milliseconds of each choice, by layer; the rest counts with the first layer.

    A file is compiled for each number of weight bits; all activations are int8 there.
    """
    if choices.sizes is None:
        raise ValueError(f"npu: there is no file to compile: {choices.file_problem}")
    tensors = choices.sizes.tensors()
    of_bits: dict[int | None, dict[str, float]] = {}
    overhead = 0.0
    for bits in weight_bits:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the export warns of made-up ranges
            quantized = quantize_model(model, choices.policy_at(bits, None))
            for index, layer in enumerate(quantized.layers):
                if isinstance(layer, QuantizedLayer):
                    assume_ranges(layer, index)
            path = pathlib.Path(folder, "model.tflite")
            export_tflite(quantized, path)
            compiled = compile_file(path, **npu)
        of_bits[bits] = {
            name: sum(compiled.milliseconds_of.get(tensor, 0.0) for tensor in names)
            for name, names in tensors.items()
        }
        overhead = max(overhead, compiled.milliseconds - sum(of_bits[bits].values()))
    seen = compiled.encoded_weight_bytes_of.keys()
    unseen = [name for name, names in tensors.items() if not seen & {*names}]
    if untimed := [*compiled.on_cpu, *unseen]:
        warn(
            f"npu: received {first_ones(untimed, 4)} that the compiler has left to the CPU, which "
            "count as taking no time at any number of bits."
        )
    return [
        of_bits.get(bits, of_bits[weight_bits[0]])[layer.name] + (overhead if index == 0 else 0.0)
        for index, layer in enumerate(choices.layers)
        for bits, _ in layer.choices
    ]
