"""The time and the bytes of layers on an Ethos-U, by Arm's compiler, for each number of bits."""

import dataclasses
import pathlib
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tf_keras as keras

from sat_tf.analysis.allocation.choices import ModelChoices
from sat_tf.analysis.allocation.problem import Usage
from sat_tf.export.export import export_tflite
from sat_tf.export.targets.ethos_u import TARGET_OF, compile_file, compiler_options
from sat_tf.messages import did_you_mean, first_ones
from sat_tf.planning.preview import assume_ranges
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.scheme import quantize_model
from sat_tf.qat.wrapper import QuantizedLayer

# A warning names so many operators.
_NAMED = 4
_ARGUMENTS = ("configuration", "system_config", "memory_mode", "config")


def read_npu(npu: Any, policy: BitPolicy) -> tuple[dict[str, Any], BitPolicy]:
    """The arguments of `compile_file` that name an NPU, and the policy with its target.

    Args:
        npu: a configuration, or a mapping with these arguments.
        policy: without a target, or with that of the NPU.

    Raises:
        ImportError: the compiler is not installed.
        ValueError: no such NPU or system, or the policy is for another processor.
    """
    given = {"configuration": npu} if isinstance(npu, str) else npu
    if not isinstance(given, Mapping) or "configuration" not in given:
        raise ValueError(
            f"npu={npu!r}: expected a configuration of an Ethos-U, such as 'ethos-u55-128', or a "
            f"mapping with {', '.join(_ARGUMENTS)}, as `compile_file` takes them."
        )
    if unknown := [name for name in given if name not in _ARGUMENTS]:
        raise ValueError(
            f"npu: received {unknown[0]!r}, expected {', '.join(_ARGUMENTS)}. "
            f"{did_you_mean(str(unknown[0]), _ARGUMENTS)}"
        )
    compiler_options(**given)
    configuration = given["configuration"]
    target = TARGET_OF[configuration]
    if policy.target not in (None, target):
        raise ValueError(
            f"npu={configuration!r}: received a policy with target={policy.target!r}, expected "
            f"{target!r}; give the policy that target."
        )
    return dict(given), dataclasses.replace(policy, target=target)


def compiled_usage(
    model: keras.Model, choices: ModelChoices, weight_bits: Sequence[int], npu: Mapping[str, Any]
) -> dict[str, Usage]:
    """The use that the choices of each layer make of an NPU, by the names of limits.

    A file is compiled for each number of weight bits, of all layers that are chosen for. Bits of
    activations change nothing, since all are int8 there, and their ranges are made up.

    Args:
        model: the float model.
        choices: what can be chosen.
        weight_bits: to choose from.
        npu: from `read_npu`.

    Raises:
        ValueError: the model has no file, or the compiler refuses it.
    """
    if choices.file_problem:
        raise ValueError(f"npu: there is no file to compile: {choices.file_problem}")
    tensors = {layer.name: choices.tensors(layer) for layer in choices.layers}
    of_bits: dict[str, dict[int, dict[str, float]]] = {"milliseconds": {}, "compiled_bytes": {}}
    rest: dict[str, list[float]] = {name: [] for name in of_bits}
    for bits in weight_bits:
        policy = choices.policy_of({layer.name: (bits, None) for layer in choices.layers})
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of made-up ranges
            quantized = quantize_model(model, policy)
            for index, layer in enumerate(quantized.layers):
                if isinstance(layer, QuantizedLayer):
                    assume_ranges(layer, index)
            path = pathlib.Path(folder, "model.tflite")
            export_tflite(quantized, path)
            compiled = compile_file(path, **npu)
        for name, parts, total in (
            ("milliseconds", compiled.milliseconds_of, compiled.milliseconds),
            ("compiled_bytes", compiled.encoded_weight_bytes_of, len(compiled.content)),
        ):
            own = {
                layer: sum(parts.get(tensor, 0.0) for tensor in made)
                for layer, made in tensors.items()
            }
            of_bits[name][bits] = own
            rest[name].append(total - sum(own.values()))
    if compiled.on_cpu:
        warnings.warn(
            f"npu: the file leaves {first_ones(compiled.on_cpu, _NAMED)} to the CPU, of whose time "
            "the compiler estimates nothing: milliseconds are those of the NPU alone.",
            stacklevel=3,
        )
    unseen = [
        layer
        for layer, made in tensors.items()
        if not any(one in compiled.encoded_weight_bytes_of for one in made)
    ]
    if unseen:
        warnings.warn(
            f"npu: the compiler tells nothing of {first_ones(unseen, _NAMED)}, which count as "
            "costing nothing at any number of bits; override their bits in the policy.",
            stacklevel=3,
        )
    usual = weight_bits[0]
    return {
        name: Usage(
            [
                [found[usual if own not in found else own][layer.name] for own, _ in layer.choices]
                for layer in choices.layers
            ],
            max(rest[name]),
        )
        for name, found in of_bits.items()
    }
