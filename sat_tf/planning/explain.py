"""The dry run: how `quantize_model` and the export will treat a model."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import tf_keras as keras

from sat_tf.arguments import is_integer
from sat_tf.either_keras import for_keras3
from sat_tf.exact.targets.operator_constraints import TARGETS, CpuFallback
from sat_tf.exact.targets.processors import DEFAULT_PROCESSOR, Processor
from sat_tf.exact.tflite.input_range import INPUT_TYPES, InputRange, can_be_pictures
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.lowering.pipeline import sized
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node, is_annotation, loss_problems, refuse_losses
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.messages import ModelError
from sat_tf.planning import deployment
from sat_tf.planning.plan import ActivationPlan, Export, Fate, LayerPlan, Plan, WeightPlan
from sat_tf.qat.configs import PlacedConfig, PlacementError
from sat_tf.qat.inputs import borders, converts_pixels, find_folds, own_type
from sat_tf.qat.layout import is_quantized, maker_of_codes, non_finite_weights, user_name
from sat_tf.qat.model_class import policy_of, processor_of
from sat_tf.qat.placement import Placement, place
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.requantize import completed, effective_kernels, without_quantizers
from sat_tf.qat.wrapper import QuantizedLayer, output_quantizer
from sat_tf.quantizers.protocol import BITS_FIELDS, ActivationQuantizer, Quantizer, WeightQuantizer
from sat_tf.quantizers.quantizer_table import line_of

_WEIGHTS_OF_TABLES = WeightPlan(
    bits=8,
    grid="narrow",
    range="layer",
    rescale=None,
    rescale_reason="",
    start="keeps function and gradients: latent rows of the table's own size",
    quantizer="rows: int8 codes on one scale, which files copy",
)
_WEIGHTS_OF_GATES = dataclasses.replace(
    _WEIGHTS_OF_TABLES,
    start="keeps function and gradients: latent weights of the layer's own size",
    quantizer="gates: int8 codes on one scale for each gate",
)
_NOT_ANNOTATED = "it is not annotated"
_TAKEN = {
    "int8": "real values, int8 codes of their calibrated range in the file",
    "int16": "real values, int16 codes of their calibrated range in the file",
    "float32": "real values, float32 in the file, which quantizes them",
}


def _input_line(
    network: Network, name: str, policy: BitPolicy, *, is_kept: bool, is_quantized: bool
) -> str:
    """Tells how an input is fed; the float form of a quantized model has its border already."""
    if is_kept:
        return f"{own_type(network[name])} as it is, for layers that take no codes"
    input_type = policy.type_of(name)
    if input_type in _TAKEN:
        return _TAKEN[input_type]
    range_ = policy.range_of(name)
    line = f"pixels 0 to 255 stand for {_ends(range_)}, uint8 in the file"
    shape = network[name].shape
    is_stated = policy.states_range_of(name) or policy.states_type_of(name)
    # Pictures have three channels, or pixels that the model converts or the policy describes.
    if not (
        (can_be_pictures(shape) and shape[-1] != 1) or converts_pixels(network, name) or is_stated
    ):
        guess = f"integers 0 to 255, though a shape of {tuple(shape)} is no picture's"
        if can_be_pictures(shape):
            guess = "grey pictures, pixels 0 to 255, though it may be other maps of numbers"
        fix = "what is no picture takes input_type='int8' or 'float32'"
        return f"taken for {guess}, uint8 in the file; {fix}"
    if range_.channels is not None and (not shape or shape[-1] != range_.channels):
        return line  # a problem of the plan
    # Two inputs of one layer fold one change, so each is looked up separately.
    layers = dict.fromkeys(fold.layer for fold in find_folds(network, {name: range_.change})[0])
    line = f"{line}, folded into {', '.join(layers)}" if layers else line
    around = [] if is_quantized else borders(network, {name: range_})
    return "; ".join([line, *map(str, around)])


def _ends(range_: InputRange) -> str:
    listed = (", ".join(f"{end:.4g}" for end in ends) for ends in (range_.low, range_.high))
    ends = " to ".join(f"({text})" if "," in text else text for text in listed)
    if isinstance(range_.spelling, str) and range_.channels:
        ends += f' ("{range_.spelling}")'
    return f"{ends}, channels reversed (BGR)" if range_.reversed_channels else ends


class LayerDecisions:
    """Reads what a policy has decided for a float model, layer by layer."""

    def __init__(
        self, network: Network, placement: Placement, policy: BitPolicy, *, requantized: bool
    ) -> None:
        self._network, self._placement, self._policy = network, placement, policy
        self._roles, self._requantized = placement.roles, requantized

    def of(self, name: str) -> dict[str, Any]:
        """The fields of a layer's `LayerPlan` that the placement decides."""
        config = self._placement.configs.get(name)
        output = config.output if config else None
        fate, reason = self._fate(name), ""
        if fate is Fate.FLOAT and self._roles.of[name] is Role.OPAQUE:
            reason = self._float_reason(name)
        elif fate is Fate.FLOAT:
            reason = self._activation_reason(name, output) if config else _NOT_ANNOTATED
        return {
            "fate": fate,
            "reason": reason,
            "weights": self._weights(name),
            "activation": _table_plan(config)
            or activation_plan(output, stream=name in self._placement.streams),
            "activation_reason": self._activation_reason(name, output),
            "observed": _observes(output),
            "absorbed_by": self._placement.absorbed_by.get(name, ""),
        }

    def _fate(self, name: str) -> Fate:
        role = self._roles.of[name]
        config = self._placement.configs.get(name)
        if role is Role.INPUT:
            return Fate.INPUT
        if role is Role.IDENTITY:
            return Fate.MOVES
        if role is Role.OPAQUE or config is None:
            return Fate.FLOAT
        has_codes = config.rows or isinstance(config.output, ActivationQuantizer)
        if config.weights is not None or has_codes:
            return Fate.QUANTIZED
        if name in self._placement.absorbed_by:
            return Fate.ABSORBED
        if role in (Role.MOVEMENT, Role.SOFTMAX) and not _observes(config.output):
            return Fate.MOVES if role is Role.MOVEMENT or config.around else Fate.FLOAT
        return Fate.OBSERVED if _observes(config.output) else Fate.FLOAT

    def _float_reason(self, name: str) -> str:
        """Why a layer is left float."""
        if problem := layer_kinds.unsupported_problem(self._network[name].layer):
            return problem
        if name not in self._roles.annotations:
            return _NOT_ANNOTATED
        if self._roles.policies[name].weight_bits is None:
            return "weight_bits=None"
        return f"what reads it takes no codes: {self._readers(name)}"

    def _weights(self, name: str) -> WeightPlan | None:
        """How the kernel, or the table, of a layer is quantized, and why."""
        config, layer = self._placement.configs.get(name), self._network[name].layer
        quantizer = config.weights if config else None
        if config is not None and config.rows:
            return _WEIGHTS_OF_TABLES
        if config is not None and self._roles.of[name] is Role.RECURRENCE:
            return dataclasses.replace(_WEIGHTS_OF_GATES, bits=config.gate_bits or 8)
        if config is None or quantizer is None:
            return None
        if norms := self._placement.norms_behind.get(name, ()):
            classes = {type(self._network[norm].layer).__name__ for norm in norms}
            rescale_reason = f"{' and '.join(sorted(classes))} directly after it"
        elif quantizer.rescale == "none":
            rescale_reason = "rescale='none'"
        else:
            rescale_reason = "no BatchNormalization directly after it"
        line = line_of(quantizer)
        if self._requantized:
            start = "keeps its latent weights"
        elif self._policy.latent_start == "as_is":
            clamped = "" if line else ", which the clamp changes"
            start = f"latent_start='as_is': the float weights{clamped}"
        else:
            start = quantizer.describe_start(np.asarray(layer_kinds.kernel_of(layer)))
        is_named = self._policy.names_weights(layer.name, config.annotation)
        if line and not (self._requantized or is_named):
            line += "; nothing names another, and it is the best known at these bits"
        return WeightPlan(
            bits=quantizer.num_bits,
            grid=quantizer.grid_name,
            range="channel" if quantizer.channels_differ else "layer",
            rescale=quantizer.rescale if quantizer.rescale != "none" else None,
            rescale_reason=rescale_reason,
            bits_reason=self._bits_reason(name, quantizer),
            start=start,
            quantizer=line,
        )

    def _bits_reason(self, name: str, quantizer: WeightQuantizer) -> str:
        layer, fields = self._network[name].layer, self._roles.annotations[name]
        kernel = self._policy.kernel_at(layer.name, fields, end=name in self._roles.ends)
        if kernel.bits is None or kernel.bits == self._policy.weight_bits:
            return ""
        reason = "by an override or annotation"
        if kernel.bits_field == BITS_FIELDS[1]:
            calls = {call.name for call in self._network.calls(name)}
            ends = {"first": self._roles.first, "last": self._roles.last}
            reason = f"{' and '.join(end for end in ends if calls & ends[end])} linear layer"
        if quantizer.follows_grid and kernel.grid != kernel.asked_grid:
            reason += f"; {kernel.asked_grid} does not fit int8 at {kernel.bits} bits"
        return reason

    def reading_reason(self, name: str, bits: int | None) -> str:
        """Why a linear layer reads other than activation bits; "" if it does not."""
        if bits is None or bits == self._policy.activation_bits:
            return ""
        root = self._moved(self._network[name].inputs[0])
        if root in self._placement.streams:
            return "a stream, at its own bits"
        if self._roles.of[root] is not Role.INPUT:
            return ""
        return (
            "pixels" if self._policy.type_of(root) == INPUT_TYPES[0] else "an input of real values"
        )

    def _activation_reason(self, name: str, output: Quantizer | None) -> str:
        """Why a layer's output has its quantizer, or none."""
        role, placement = self._roles.of[name], self._placement
        if role is Role.INPUT:
            if name in self._roles.kept:
                return "layers that take no codes read it, as it is"
            if self._policy.type_of(name) == INPUT_TYPES[0]:
                return "pixels from 0 to 255 are already codes"
            return "real values, with 8-bit codes of their calibrated range"
        if _observes(output):
            is_output = "output" in placement.demands.of[name].values()
            rounds = output.trains_float or output.rounds
            use = "the model's output" if is_output else "it stays float in training"
            if output.rounds and not (is_output or output.trains_float):
                use = f"read by {self._readers(name)}"
            codes = "rounded to the file's 8-bit codes of its observed range"
            return f"{use}: {codes if rounds else 'its range is observed, for the 8-bit codes'}"
        if output is not None:
            states = "its states, " if role is Role.RECURRENCE else ""
            return f"{states}read by {self._readers(name)}{self.level_source(name)}"
        if role is Role.IDENTITY:
            return "it acts in training alone, and is the identity in inference"
        if role is Role.OPAQUE or name not in placement.configs:
            return "left float"
        if role is Role.LOOKUP:
            return "rows of a table: 8 bits on one scale, which its output has"
        if name in placement.absorbed_by:
            return f"absorbed by {placement.absorbed_by[name]}"
        if role is Role.MOVEMENT:
            return f"it passes on the codes of {self._moved(name)}"
        if role is Role.SOFTMAX:
            around = placement.configs[name].around
            codes = f"it rounds to the codes of {self._network[name].inputs[0]}"
            return codes if around else "probabilities stay float"
        if not self._roles.quantize_activations:
            return "activation_bits=None: activations stay float"
        kinds = {*placement.demands.of[name].values()}
        if kinds & {"float", "left float"}:
            return f"float layers read it: {self._readers(name, 'float', 'left float')}"
        if "stream" in kinds or "linear" in kinds:
            return "stream_bits=None: streams stay float"
        return "none of its readers needs codes"

    def level_source(self, name: str) -> str:
        """The origin of the clipping level of a tensor or an insertion, to append to a reason."""
        start = self._placement.starts.get(name)
        if start is None or not start.source:
            return ""
        guess = ": a guess, calibrate" if start.is_guess else ""
        return f"; clipping level from {start.source}{guess}"

    def _readers(self, name: str, *kinds: str) -> str:
        readers = [
            reader or "the output"
            for reader, demand in self._placement.demands.of[name].items()
            if not kinds or demand in kinds
        ]
        return ", ".join(readers) or "nothing"

    def _moved(self, name: str) -> str:
        roles = self._roles.of
        return self._network.origin(name, lambda node: roles[node.name].keeps_codes).name


def _table_plan(config: PlacedConfig | None) -> ActivationPlan | None:
    """The plan of the codes that a layer gives from its table; None for others."""
    is_table = config is not None and config.rows
    return ActivationPlan(bits=8, signed=True, stream=True) if is_table else None


def activation_plan(quantizer: Quantizer | None, *, stream: bool = False) -> ActivationPlan | None:
    """The plan of a quantizer, if it makes codes."""
    if quantizer is not None and quantizer.input_type is not None:
        bits = getattr(quantizer, "num_bits", 8)
        return ActivationPlan(bits=bits, signed=quantizer.input_type != INPUT_TYPES[0])
    if not isinstance(quantizer, ActivationQuantizer):
        return None
    level = quantizer.initial_clipping_level
    if level is not None and quantizer.ceiling is not None:
        level = min(level, quantizer.ceiling)
    return ActivationPlan(
        bits=quantizer.num_bits,
        signed=quantizer.signed,
        clipping_level=level,
        gradient=quantizer.gradient,
        stream=stream,
        quantizer=line_of(quantizer),
    )


def _observes(quantizer: Quantizer | None) -> TypeGuard[Quantizer]:
    return quantizer is not None and quantizer.observes_range


@dataclasses.dataclass(frozen=True)
class Source:
    """A float model as the placement takes it."""

    network: Network  # Its graph, without annotations.
    annotations: Mapping[str, Any]  # For every layer to quantize, its `LayerConfig` or None.
    losses: Sequence[str] = ()  # Its own losses and metrics, which `quantize_model` refuses.
    # The graph of a model that is quantized already, whose weights are latent.
    quantized: Network | None = None
    # Its effective kernels in that case, by name.
    kernels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def read_source(model: keras.Model, *, processor: Processor = DEFAULT_PROCESSOR) -> Source:
    """Reads a float model, one that TFMOT's functions have annotated, or one quantized before."""
    # Reading the graph refuses all but models.
    layers = getattr(model, "layers", ())
    if not any(isinstance(layer, QuantizedLayer) or is_annotation(layer) for layer in layers):
        # `quantize_model` reads it in the same form.
        network = network_of_layers(model, processor=processor)
        return Source(network, {node.name: None for node in network}, loss_problems(model))
    network = Network(model)
    if is_quantized(network):
        network.refuse_problems()
        refuse_losses(model)
        source, annotations = without_quantizers(network)
        kernels = effective_kernels(network)
        return Source(source, annotations, quantized=network, kernels=kernels)
    annotated = [node for node in network if is_annotation(node.layer)]
    renamed = {node.name: node.layer.layer.name for node in annotated}
    nodes = []
    for node in network:
        layer = node.layer.layer if node.name in renamed else node.layer
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        # TFMOT's wrapper hands no arguments on.
        nodes.append(dataclasses.replace(node, name=layer.name, layer=layer, inputs=inputs))
    annotations = {renamed[node.name]: node.layer.quantize_config for node in annotated}
    network = network.rearranged(nodes, renamed)
    network.output_names = tuple(network[name].layer.name for name in network.outputs)
    return Source(network, annotations, loss_problems(model))


@for_keras3()
def explain(
    model: keras.Model,
    policy: BitPolicy | int | None = None,
    *,
    image_size: int | Sequence[int] | None = None,
    target: str | None = None,
) -> Plan:
    """Says how every layer of a model will be quantized and exported, before anything is built.

    The model is not changed. Clipping levels are assumed to be all different, as after training:
    between two tensors with equal levels the file needs no operator. A model that cannot be
    quantized has a plan too: its `problems` are those that `quantize_model` raises, and its other
    layers are planned as if these were left float.

    Args:
        model: a built Functional or Sequential tf_keras model; or one annotated by TFMOT's
            `quantize_annotate_model` or `quantize_annotate_layer`; or one quantized by sat-tf, for
            which the plan is that of `requantize`.
        policy: as for `quantize_model`, or for `requantize`; by default the one by which the model
            was quantized in this process.
        image_size: rows and columns, or one number for both, or (length,) for sequences, for a
            model of open sizes; without it, its multiply-adds are unknown.
        target: the processor that the file is for, in place of the policy's. For all but
            "litert" the plan names every operator of the file that the processor would leave to the
            CPU, or refuse, why, and what to change.

    Raises:
        ValueError: the model has no graph (it is subclassed, or not built); the policy is not a
            `BitPolicy`, or left out for a quantized model that was loaded; the model has another
            image size; there is no such target.

    >>> import tf_keras as keras
    >>> model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3, name="conv")])
    >>> plan = explain(model, BitPolicy.mobile(4))
    >>> plan["conv"].weights.bits, plan["conv"].multiply_adds, plan.problems
    (8, 3888, ())
    """
    model_policy = policy_of(model)
    stated_policy = model_policy if policy is None else expect_policy(policy)
    planned_policy = stated_policy or BitPolicy.mobile()
    if planned_policy.target is None:
        target = target or processor_of(model).name
    if target is not None:
        planned_policy = dataclasses.replace(planned_policy, target=target)
    source = read_source(model, processor=planned_policy.processor)
    if stated_policy is None and source.quantized is not None:
        raise ModelError(
            model.name,
            "received a quantized model without a policy, expected the "
            "one to quantize it by, which files do not have; call sat_tf.explain(model, "
            "policy).",
        )
    if image_size is not None and not source.network.problems:
        sides: Any = (image_size, image_size) if is_integer(image_size) else image_size
        network = sized(source.network, sides)
        network.output_names = source.network.output_names
        source = dataclasses.replace(source, network=network)
    return plan_of(source, planned_policy)


def plan_of(source: Source, policy: BitPolicy) -> Plan:
    """The plan of a model that has been read; see `explain`."""
    refused, is_quantized = list(source.losses), source.quantized is not None
    if source.quantized is not None:
        policy, _, of_inputs = completed(source.quantized, policy)
        refused += of_inputs
    problems, placement, decided_by = _placed(source, policy)
    kept_names = placement.roles.kept if placement is not None else frozenset[str]()
    fed = {
        name: _input_line(
            source.network, name, policy, is_kept=name in kept_names, is_quantized=is_quantized
        )
        for name in source.network.inputs
    }
    problems = refused + problems
    named = deployment.by_layer(problems)
    name = source.network.name
    plan = Plan(
        model=name,
        policy=policy,
        rows=(),
        problems=tuple(problems),
        inputs=tuple(f"{name}: {line}" for name, line in fed.items()),
        kept=kept_names,
    )
    if placement is None:  # nothing could be decided
        undecided: dict[str, Any] = dict.fromkeys(("multiply_adds", "bit_operations"))
        undecided |= {"fate": Fate.FLOAT, "export": Export.REFUSED}
        rows = []
        for node in source.network:
            of_layer = named.get(node.name, ())
            why = "nothing is quantized, because of the problems of the model"
            reason = "" if of_layer else why
            rows.append(_row(node, node.inputs, of_layer, reason=reason, **undecided))
        return dataclasses.replace(plan, rows=tuple(rows))
    view = deployment.preview(source.network, placement)
    settings = FileSettings(output_type=None, target=policy.processor.name)
    deployed = deployment.deployment(view, settings, tolerant=bool(problems))
    decisions = LayerDecisions(source.network, placement, decided_by, requantized=is_quantized)
    graph, target = deployed.graph, TARGETS[settings.target]
    cpu_fallback: list[CpuFallback] = []
    operators = None
    if target.operators is not None and graph and not (problems or deployed.problems):
        cpu_fallback, operators = deployment.planned_cpu_fallback(graph, settings)
    return dataclasses.replace(
        plan,
        rows=tuple(_rows(decisions, source.network, placement, view, deployed, named)),
        export_problems=deployed.problems,
        notes=tuple(graph.warnings) if graph is not None else (),
        cpu_fallback=tuple(cpu_fallback),
        file_operators=operators,
    )


def _placed(source: Source, policy: BitPolicy) -> tuple[list[str], Placement | None, BitPolicy]:
    """The problems, and the placement without the layers that have any."""
    network, annotations = source.network, source.annotations
    try:
        placement = place(network, annotations, policy, source.kernels)
    except PlacementError as error:
        problems = list(error.problems)
    else:
        return non_finite_weights(network), placement, policy
    layers = [node.layer.name for node in network if node.name not in network.inputs]
    unmatched = policy.unmatched_overrides(layers)
    overrides = {key: policy.overrides[key] for key in policy.overrides if key not in unmatched}
    lenient = dataclasses.replace(policy, unsupported="float", overrides=overrides)
    named = deployment.by_layer(problems)
    without = {name: annotation for name, annotation in annotations.items() if name not in named}
    clear = network.rearranged(network, {})
    clear.problems = {}
    for selection in (annotations, without):
        try:
            return problems, place(clear, selection, lenient, source.kernels), lenient
        except Exception:  # the graph may be incomplete
            continue
    return problems, None, policy


def _row(
    node: Node, reads: tuple[str, ...], problems: Sequence[str], *, fate: Fate, **fields: Any
) -> LayerPlan:
    """The row of a layer, with facts of the float model."""
    class_name = layer_kinds.class_name(node.layer)
    # The weights of a layer that is called several times count once.
    counts = node.layer.built and node.name == node.layer.name
    return LayerPlan(
        name=node.name,
        kind=class_name,
        short_kind=layer_kinds.short_name(class_name),
        detail=layer_kinds.find_kind(node.layer).detail(node.layer),
        reads=reads,
        shape=node.shape,
        fate=Fate.PROBLEM if problems else fate,
        parameters=int(node.layer.count_params()) if counts else 0,
        problems=tuple(problems),
        **fields,
    )


def _rows(
    decisions: LayerDecisions,
    network: Network,
    placement: Placement,
    view: Network,
    deployed: deployment.Deployment,
    problems: Mapping[str, Sequence[str]],
) -> Iterator[LayerPlan]:
    sizes = deployment.bytes_of(deployed)
    in_view: dict[str, Node] = {}
    for node in view:
        in_view.setdefault(user_name(node), node)
    for node in network:
        decided = decisions.of(node.name)
        weights = decided["weights"]
        reads = tuple(user_name(view[name]) for name in in_view[node.name].inputs)
        products = deployment.multiply_adds(node, [network[name].shape for name in node.inputs])
        weight_bits, read_bits = None, None
        if weights is not None:
            maker = maker_of_codes(view, in_view[node.name].inputs[0])
            config = getattr(maker.layer, "quantize_config", None)
            codes_read = _table_plan(config) or activation_plan(output_quantizer(maker.layer))
            weight_bits, read_bits = weights.bits, codes_read.bits if codes_read else None
        yield _row(
            node,
            reads,
            problems.get(node.name, ()),
            **decided,
            **deployed.layers[node.name].fields(),
            reading_bits=read_bits,
            reading_reason=decisions.reading_reason(node.name, read_bits) if weights else "",
            multiply_adds=products,
            bit_operations=deployment.bit_operations(products, weight_bits, read_bits),
            bytes=sizes.get(node.name),
            float_bytes=deployment.float_bytes(network, node),
        )
        for insertion in placement.behind(node.name):
            quantizer, readers = insertion.config.output, tuple(sorted(insertion.readers))
            between = f"between {insertion.tensor} and {', '.join(readers)}"
            yield LayerPlan(
                name=insertion.name,
                kind=type(quantizer).__name__,
                reads=(insertion.tensor,),
                shape=node.shape,
                fate=Fate.INSERTED,
                activation=activation_plan(quantizer),
                activation_reason=between + decisions.level_source(insertion.name),
                bytes=sizes.get(insertion.name),
                inserted=True,
                readers=readers,
                **deployed.layers[insertion.name].fields(),
            )
