"""The decisions of a placement for each layer, and their reasons."""

from collections.abc import Collection
from typing import Any, TypeGuard

import numpy as np

from sat_tf.exact.tflite.input_range import INPUT_TYPES, InputRange, can_be_pictures
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network
from sat_tf.planning.plan import ActivationPlan, Fate, WeightPlan
from sat_tf.qat.inputs import borders, converts_pixels, find_folds, own_type
from sat_tf.qat.placement import Placement
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.protocol import BITS_FIELDS, ActivationQuantizer, Quantizer, WeightQuantizer
from sat_tf.quantizers.table import line_of

_NOT_ANNOTATED = "it is not annotated"
_TAKEN = {
    "int8": "real values, int8 codes of their calibrated range in the file",
    "float32": "real values, float32 in the file, which quantizes them",
}


def input_lines(
    network: Network, policy: BitPolicy, kept: Collection[str] = (), *, is_quantized: bool = False
) -> tuple[str, ...]:
    """Tells how each input is fed; the float form of a quantized model has its border already."""
    as_it_is = {
        name: f"{own_type(network[name])} as it is, which only layers left float read"
        for name in kept
    }
    return tuple(
        f"{name}: {as_it_is.get(name) or _line(network, name, policy, is_quantized)}"
        for name in network.inputs
    )


def _line(network: Network, name: str, policy: BitPolicy, is_quantized: bool) -> str:
    kind = policy.type_of(name)
    if kind in _TAKEN:
        return _TAKEN[kind]
    found = policy.range_of(name)
    line = f"pixels 0 to 255 stand for {_ends(found)}, uint8 in the file"
    if guess := guessed_pixels(network, policy, name):
        fix = "what is no picture takes input_type='int8' or 'float32'"
        return f"{guess}, uint8 in the file; {fix}"
    shape = network[name].shape
    if found.channels is not None and (not shape or shape[-1] != found.channels):
        return line  # a problem of the plan
    # Two inputs of one layer fold one change, so each is looked up separately.
    layers = dict.fromkeys(fold.layer for fold in find_folds(network, {name: found.change})[0])
    line = f"{line}, folded into {', '.join(layers)}" if layers else line
    around = [] if is_quantized else borders(network, {name: found})
    return "; ".join([line, *map(str, around)])


def guessed_pixels(network: Network, policy: BitPolicy, name: str) -> str:
    """Says of an input that may be no picture that it is taken for one; "" of any other.

    Pictures have three channels, or pixels that the model converts or of which the policy speaks.
    """
    shape = network[name].shape
    is_coloured = can_be_pictures(shape) and shape[-1] != 1
    is_stated = policy.states_range_of(name) or policy.states_type_of(name)
    if is_coloured or converts_pixels(network, name) or is_stated:
        return ""
    if can_be_pictures(shape):
        return "taken for grey pictures, pixels 0 to 255, though it may be other maps of numbers"
    return f"taken for integers 0 to 255, though a shape of {tuple(shape)} is no picture's"


def _ends(found: InputRange) -> str:
    listed = (", ".join(f"{end:.4g}" for end in ends) for ends in (found.low, found.high))
    ends = " to ".join(f"({each})" if "," in each else each for each in listed)
    if isinstance(found.spelling, str) and found.channels:
        ends += f' ("{found.spelling}")'
    return f"{ends}, channels reversed (BGR)" if found.reversed_channels else ends


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
            reason = layer_kinds.unsupported_problem(self._network[name].layer) or _NOT_ANNOTATED
        elif fate is Fate.FLOAT:
            reason = self._activation_reason(name, output) if config else _NOT_ANNOTATED
        return {
            "fate": fate,
            "reason": reason,
            "weights": self._weights(name),
            "activation": activation_plan(output, stream=name in self._placement.streams),
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
        if config.weights is not None or isinstance(config.output, ActivationQuantizer):
            return Fate.QUANTIZED
        if name in self._placement.absorbed_by:
            return Fate.ABSORBED
        if role in (Role.MOVEMENT, Role.SOFTMAX) and not _observes(config.output):
            return Fate.MOVES if role is Role.MOVEMENT or config.around else Fate.FLOAT
        return Fate.OBSERVED if _observes(config.output) else Fate.FLOAT

    def _weights(self, name: str) -> WeightPlan | None:
        """How the kernel of a layer is quantized, and why."""
        config, layer = self._placement.configs.get(name), self._network[name].layer
        quantizer = config.weights if config else None
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
                return "only layers left float read it, as it is"
            if self._policy.type_of(name) == INPUT_TYPES[0]:
                return "pixels from 0 to 255 are already codes"
            return "real values, with 8-bit codes of their calibrated range"
        if _observes(output):
            is_output = "output" in placement.demands.of[name].values()
            rounds = output.trains_float or output.rounds
            made = "the model's output" if is_output else "it stays float in training"
            codes = "rounded to the file's 8-bit codes of its observed range"
            return f"{made}: {codes if rounds else 'its range is observed, for the 8-bit codes'}"
        if output is not None:
            return f"read by {self._readers(name)}{self.level_source(name)}"
        if role is Role.IDENTITY:
            return "it acts in training alone, and is the identity in inference"
        if role is Role.OPAQUE or name not in placement.configs:
            return "left float"
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
            for reader, kind in self._placement.demands.of[name].items()
            if not kinds or kind in kinds
        ]
        return ", ".join(readers) or "nothing"

    def _moved(self, name: str) -> str:
        roles = self._roles.of
        return self._network.origin(name, lambda node: roles[node.name].keeps_codes).name


def activation_plan(quantizer: Quantizer | None, *, stream: bool = False) -> ActivationPlan | None:
    """The plan of a quantizer, if it makes codes."""
    if quantizer is not None and quantizer.input_type is not None:
        return ActivationPlan(bits=8, signed=quantizer.input_type != INPUT_TYPES[0])
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
