"""The time of layers on an Ethos-U, by Arm's compiler, for each number of weight bits."""

import dataclasses
import pathlib
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tf_keras as keras

from sat_tf.analysis.allocation.choices import ModelChoices
from sat_tf.export.export import export_tflite
from sat_tf.export.targets.ethos_u import TARGET_OF, compile_file, compiler_options
from sat_tf.messages import first_ones
from sat_tf.planning.preview import assume_ranges
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.scheme import quantize_model
from sat_tf.qat.wrapper import QuantizedLayer

_ARGUMENTS = ("configuration", "system_config", "memory_mode", "config")


def read_npu(npu: Any, policy: BitPolicy) -> tuple[dict[str, Any], BitPolicy]:
    """Returns the arguments of `compile_file` that name an NPU, and the policy with its target."""
    arguments = {"configuration": npu} if isinstance(npu, str) else npu
    if not isinstance(arguments, Mapping) or not (
        {"configuration"} <= arguments.keys() <= {*_ARGUMENTS}
    ):
        raise ValueError(
            f"npu={npu!r}: expected a configuration of an Ethos-U, such as 'ethos-u55-128', or a "
            f"mapping with {', '.join(_ARGUMENTS)}, as `compile_file` takes them."
        )
    compiler_options(**arguments)
    target = TARGET_OF[arguments["configuration"]]
    if policy.target not in (None, target):
        raise ValueError(
            f"npu={arguments['configuration']!r}: received a policy with target={policy.target!r}, "
            f"expected {target!r}; give the policy that target."
        )
    return dict(arguments), dataclasses.replace(policy, target=target)


def milliseconds_of(
    model: keras.Model, choices: ModelChoices, weight_bits: Sequence[int], npu: Mapping[str, Any]
) -> list[float]:
    """Returns the milliseconds of each choice, layer by layer; the rest counts with the first one.

    A file is compiled for each number of weight bits, of all layers that are chosen for. Bits of
    activations change nothing, since all are int8 there, and their ranges are made up.
    """
    if choices.sizes is None:
        raise ValueError(f"npu: there is no file to compile: {choices.file_problem}")
    of_layers = choices.sizes.tensors()
    tensors = {layer.name: of_layers[layer.name] for layer in choices.layers}
    of_bits: dict[int | None, dict[str, float]] = {}
    rest = 0.0
    for bits in weight_bits:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of made-up ranges
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
        rest = max(rest, compiled.milliseconds - sum(of_bits[bits].values()))
    seen = compiled.encoded_weight_bytes_of.keys()
    unseen = [name for name, names in tensors.items() if not seen & {*names}]
    for names, where in ((compiled.on_cpu, "left to the CPU"), (unseen, "not told of")):
        if names:
            warnings.warn(
                f"npu: received {first_ones(names, 4)} that the compiler has {where}, which count "
                "as taking no time at any number of bits.",
                stacklevel=3,
            )
    return [
        of_bits.get(bits, of_bits[weight_bits[0]])[layer.name] + (rest if index == 0 else 0.0)
        for index, layer in enumerate(choices.layers)
        for bits, _ in layer.choices
    ]
