"""The dry run: how `quantize_model` and the export will treat a model."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.either_keras import for_keras3
from sat_tf.exact.targets.processors import DEFAULT_PROCESSOR, Processor
from sat_tf.exact.targets.table import TARGETS, CpuFallback
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network, Node, loss_problems, refuse_losses
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.messages import ModelError
from sat_tf.planning.decisions import LayerDecisions, activation_plan, input_lines
from sat_tf.planning.deployment import (
    Deployment,
    bit_operations,
    bytes_of,
    deployment,
    float_bytes,
    multiply_adds,
)
from sat_tf.planning.plan import Export, Fate, LayerPlan, Plan
from sat_tf.planning.preview import by_layer, planned_cpu_fallback, preview, with_image_size
from sat_tf.qat.configs import PlacementError
from sat_tf.qat.layout import is_quantized, maker_of_codes, non_finite_weights, user_name
from sat_tf.qat.model_class import policy_of, processor_of
from sat_tf.qat.placement import Placement, place
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.requantize import completed, effective_kernels, without_quantizers
from sat_tf.qat.wrapper import output_quantizer


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
    network = Network(model)
    if is_quantized(network):
        network.refuse_problems()
        refuse_losses(model)
        source, annotations = without_quantizers(network)
        kernels = effective_kernels(network)
        return Source(source, annotations, quantized=network, kernels=kernels)
    # TFMOT has no public name for its wrapper.
    annotated = [
        node
        for node in network
        if type(node.layer).__name__ == "QuantizeAnnotate"
        and hasattr(node.layer, "quantize_config")
    ]
    if not annotated:
        # `quantize_model` reads it in the same form.
        network = network_of_layers(model, processor=processor)
        return Source(network, {node.name: None for node in network}, loss_problems(model))
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

    The quantizers are those of the placement that `quantize_model` follows, and the operators are
    those that `export_tflite` writes with its defaults. The model is not changed. Clipping levels
    are assumed to be all different, as after training: between two tensors with equal levels the
    file needs no operator.

    A model that cannot be quantized has a plan too: its `problems` are those that `quantize_model`
    raises, and its other layers are planned as if these were left float.

    Args:
        model: a built Functional or Sequential tf_keras model; or one annotated by TFMOT's
            `quantize_annotate_model` or `quantize_annotate_layer`; or one quantized by sat-tf, for
            which the plan is that of `requantize`.
        policy: as for `quantize_model`, or for `requantize`; left out, that by which the model was
            quantized in this process.
        image_size: rows and columns, or one number for both, or (length,) for sequences, for a
            model of open sizes; without it, its multiply-adds are unknown.
        target: the processor that the file is for, in place of the policy's. For all but
            "litert" the plan names every operator of the file that the processor would leave to the
            CPU, or refuse, why, and what to change.

    Returns:
        A `Plan`.

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
    before = policy_of(model)
    asked = before if policy is None else expect_policy(policy)
    wanted = asked or BitPolicy.mobile()
    if wanted.target is None:
        target = target or processor_of(model).name
    if target is not None:
        wanted = dataclasses.replace(wanted, target=target)
    source = read_source(model, processor=wanted.processor)
    if asked is None and source.quantized is not None:
        raise ModelError(
            model.name,
            "received a quantized model without a policy, expected the "
            "one to quantize it by, which files do not have; call sat_tf.explain(model, "
            "policy).",
        )
    return plan_of(source, wanted, image_size)


def plan_of(
    source: Source, policy: BitPolicy, image_size: int | Sequence[int] | None = None
) -> Plan:
    """The plan of a model that has been read; see `explain`."""
    sized = with_image_size(source.network, image_size)  # reports a bad size first
    refused = list(source.losses)
    if source.quantized is not None:
        policy, _, of_inputs = completed(source.quantized, policy)
        refused += of_inputs
    problems, placement, decided_by = _placed(source, policy)
    kept = placement.roles.kept if placement is not None else ()
    is_quantized = source.quantized is not None
    inputs = input_lines(source.network, policy, kept, is_quantized=is_quantized)
    problems = refused + problems
    name = source.network.name
    plan = Plan(model=name, policy=policy, rows=(), problems=tuple(problems), inputs=inputs)
    if placement is None:  # nothing could be decided
        named = by_layer(problems, [node.name for node in source.network])
        reason = "nothing is quantized, because of the problems of the model"
        fields = {"export": Export.REFUSED, "multiply_adds": None, "bit_operations": None}
        undecided = [
            _row(
                node,
                node.inputs,
                named.get(node.name, ()),
                fate=Fate.FLOAT,
                reason="" if node.name in named else reason,
                **fields,
            )
            for node in source.network
        ]
        return dataclasses.replace(plan, rows=tuple(undecided))
    view = preview(sized, placement)
    settings = FileSettings(output_type=None, target=policy.processor.name)
    deployed = deployment(view, settings, tolerant=bool(problems))
    decisions = LayerDecisions(
        sized, placement, decided_by, requantized=source.quantized is not None
    )
    rows = tuple(_rows(decisions, sized, placement, view, deployed, problems))
    notes = tuple(deployed.graph.warnings) if deployed.graph is not None else ()
    cpu_fallback: list[CpuFallback] = []
    operators = None
    limited = TARGETS[settings.target].operators is not None
    if limited and deployed.graph and not (problems or deployed.problems):
        cpu_fallback, operators = planned_cpu_fallback(deployed.graph, settings)
    return dataclasses.replace(
        plan,
        rows=rows,
        export_problems=deployed.problems,
        notes=notes,
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
    overrides = {
        pattern: fields
        for pattern, fields in policy.overrides.items()
        if not any(problem.startswith(f"overrides[{pattern!r}] ") for problem in problems)
    }
    lenient = dataclasses.replace(policy, unsupported="float", overrides=overrides)
    named = by_layer(problems, [node.name for node in network])
    without = {name: given for name, given in annotations.items() if name not in named}
    clear = network.rearranged(network, {})
    clear.problems = {}
    for kept in (annotations, without):
        try:
            return problems, place(clear, kept, lenient, source.kernels), lenient
        except Exception:  # the graph may be incomplete
            continue
    return problems, None, policy


def _row(
    node: Node, reads: tuple[str, ...], problems: Sequence[str], *, fate: Fate, **more: Any
) -> LayerPlan:
    """The row of a layer, with what the float model tells of it."""
    kind = layer_kinds.class_name(node.layer)
    # It counts once for a layer that is called several times.
    counts = node.layer.built and node.name == node.layer.name
    return LayerPlan(
        name=node.name,
        kind=kind,
        short_kind=layer_kinds.short_name(kind),
        detail=layer_kinds.detail_of(node.layer),
        reads=reads,
        shape=node.shape,
        fate=Fate.PROBLEM if problems else fate,
        parameters=int(node.layer.count_params()) if counts else 0,
        problems=tuple(problems),
        **more,
    )


def _rows(
    decisions: LayerDecisions,
    network: Network,
    placement: Placement,
    view: Network,
    deployed: Deployment,
    problems: Sequence[str],
) -> Iterator[LayerPlan]:
    named = by_layer(problems, [node.name for node in network])
    sizes = bytes_of(deployed)
    in_view: dict[str, Node] = {}
    for node in view:
        in_view.setdefault(user_name(node), node)
    for node in network:
        decided = decisions.of(node.name)
        weights = decided["weights"]
        reads = tuple(user_name(view[name]) for name in in_view[node.name].inputs)
        products = multiply_adds(node, [network[name].shape for name in node.inputs])
        weight_bits, read_bits = None, None
        if weights is not None:
            maker = maker_of_codes(view, in_view[node.name].inputs[0])
            codes_read = activation_plan(output_quantizer(maker.layer))
            weight_bits, read_bits = weights.bits, codes_read.bits if codes_read else None
        yield _row(
            node,
            reads,
            named.get(node.name, ()),
            **decided,
            **deployed.layers[node.name].fields(),
            reading_bits=read_bits,
            reading_reason=decisions.reading_reason(node.name, read_bits) if weights else "",
            multiply_adds=products,
            bit_operations=bit_operations(products, weight_bits, read_bits),
            bytes=sizes.get(node.name),
            float_bytes=float_bytes(network, node),
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
