"""Top-1 of calibrated models that are corrected without fitting weights, beside reconstruction.

The float models and the examples of `reconstruction.py`:

- float statistics: clipping levels are calibrated, and BatchNormalization keeps the moving
  statistics of the float model;
- bias correction: these, and layer by layer each channel's bias, or β of the normalization behind
  it, gets the mean that the float model has there;
- calibrated: as `sat_tf.calibrate` does it, which moves statistics by the effect of rounding;
- scale and bias: calibrated, and layer by layer each channel y gets the a y + b that is nearest to
  the float model's by least squares, in γ and β of the normalization behind it or in its kernel's
  gain and its bias (QwT-v2, Tang et al., arXiv 2505.20932); its file is verified;
- statistics anew: calibrated, and the statistics are those of the examples in the quantized model;
- levels by outputs: calibrated, and one clipping level after the other, from the first layer on, is
  multiplied by what makes the error of the outputs smallest; see `sat_tf.reconstruct`.

    python benchmarks/cheap_corrections.py
    python benchmarks/cheap_corrections.py --tasks=digits,signals --bits=w4a4

Rows that the CSV file has are not made again.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import peer_task
import reconstruction_tasks
import rich.console
import tf_keras
from absl import app, flags
from reconstruction_tasks import Case
from rows import as_table, read_csv, write_csv

import sat_tf
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node
from sat_tf.qat.layout import inner_layer, name_in_front_of_insertions, quantized_network
from sat_tf.qat.reconstruction.blocks import Front, find_reference
from sat_tf.qat.reconstruction.fit import Aim, Part, rows_of_classes
from sat_tf.qat.wrapper import clipping_quantizer, weight_quantizer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL
from sat_tf.quantizers.values import GAIN

_FACTORS = (0.6, 0.8, 0.9, 1.1, 1.25, 1.5)
_IMAGES_FOR_LEVELS = 128

_TASKS = flags.DEFINE_list("tasks", list(reconstruction_tasks.TASKS), "which ones")
_BITS = flags.DEFINE_list("bits", ["w4a4", "w3a3", "w2a4"], "of weights and activations")
_FOLDER = flags.DEFINE_string("folder", reconstruction_tasks.FOLDER, "where float models are kept")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/cheap_corrections.csv", "rows")


def _float_statistics(case: Case) -> Any:
    return reconstruction_tasks.calibrated(case, case.twin(), batch_normalization=False)


def _bias_corrected(case: Case) -> Any:
    return _corrected(case, _float_statistics(case), _missing_mean)


def _scaled_and_bias_corrected(case: Case) -> Any:
    model = _corrected(case, _calibrated(case), _nearest_line)
    settings = {"clipping_levels": False, "batch_normalization": False, "progress": False}
    return sat_tf.calibrate(model, case.images, **settings)  # the ranges of outputs


def _missing_mean(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(outputs.shape[-1]), np.mean(targets - outputs, axis=0, dtype=np.float64)


def _nearest_line(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The a and b of each column with the least squares of a outputs + b - targets."""
    means = [np.mean(values, axis=0, dtype=np.float64) for values in (outputs, targets)]
    spread = np.mean(np.square(outputs - means[0]), axis=0)
    common = np.mean((outputs - means[0]) * (targets - means[1]), axis=0)
    slope = np.where(spread > 0.0, common / np.where(spread > 0.0, spread, 1.0), 1.0)
    return slope, means[1] - slope * means[0]


def _corrected(case: Case, model: Any, line: Callable[..., Any]) -> Any:
    """Puts each channel of a model on a line, layer by layer, and returns the model."""
    network, reference = _networks(case, model)
    images = [case.images.astype(np.float32)]
    front, beside = Front(network, images), Front(reference, images)
    for node in network:
        target = _behind(network, node)
        float_name = name_in_front_of_insertions(network, target.name)
        if weight_quantizer(node.layer) is None or float_name not in reference:
            continue
        shift = _shift_of(inner_layer(target.layer))
        is_linear = layer_kinds.activation_name(reference[float_name].layer) in ("", "linear")
        if shift is None or not is_linear:
            continue
        for computed, name in ((front, target.name), (beside, float_name)):
            computed.advance(
                computed.up_to([name]), keep=[name, *network.outputs, *reference.outputs]
            )
        outputs = front.tensors[target.name][:]
        columns = [
            x.reshape(-1, outputs.shape[-1]) for x in (outputs, beside.tensors[float_name][:])
        ]
        slope, offset = line(*columns)
        if (scale := _scale_of(node, target)) is None:
            slope, offset = _missing_mean(*columns)
        else:
            scale.assign(scale * slope.reshape(scale.shape))
        shift.assign(slope * shift + offset)
        front.tensors[target.name] = (outputs * slope + offset).astype(np.float32)
    return model


def _scale_of(node: Node, target: Node) -> Any:
    """Finds the variable with a factor for each channel; None without one."""
    if target is not node:
        return getattr(inner_layer(target.layer), "gamma", None)
    gain, shift = node.layer.kernel_variables.get(GAIN), _shift_of(inner_layer(node.layer))
    return gain if gain is not None and np.prod(gain.shape) == np.prod(shift.shape) else None


def _behind(network: Network, node: Node) -> Node:
    """The normalization that alone reads a node, or else the node."""
    readers = network.consumers(node.name)
    alone = len(readers) == 1
    is_norm = alone and layer_kinds.role_of(inner_layer(readers[0].layer)) is Role.NORM
    return readers[0] if is_norm else node


def _shift_of(layer: Any) -> Any:
    return getattr(layer, "beta", getattr(layer, "bias", None))


def _calibrated(case: Case) -> Any:
    return reconstruction_tasks.calibrated(case, case.twin())


def _statistics_anew(case: Case) -> Any:
    model = _calibrated(case)
    sat_tf.calibrate(model, case.images, clipping_levels=False, progress=False)
    return model


def _levels_by_outputs(case: Case) -> Any:
    model = _calibrated(case)
    network, reference = _networks(case, model)
    images = [case.images[:_IMAGES_FOR_LEVELS].astype(np.float32)]
    beside = Front(reference, images)
    beside.advance(beside.up_to(reference.outputs), keep=reference.outputs)
    aims = {}
    for output_name, name in zip(network.outputs, reference.outputs, strict=True):
        targets = beside.tensors[name]
        aims[output_name] = Aim(targets, rows_of_classes(reference, name, targets.shape[1:]))
    whole = Part(Front(network, images).up_to(network.outputs), aims)
    everything = np.arange(len(images[0]))
    for node in network:
        if clipping_quantizer(node.layer) is None:
            continue
        level = node.layer.output_variables[CLIPPING_LEVEL]
        start, errors = float(level), {1.0: float(np.sum(whole.errors(everything)))}
        for factor in _FACTORS:
            level.assign(start * factor)
            errors[factor] = float(np.sum(whole.errors(everything)))
        level.assign(start * min(errors, key=errors.__getitem__))
    return model


def _networks(case: Case, model: Any) -> tuple[Network, Network]:
    network = quantized_network(model, when="first")
    reference, problems = find_reference(network, case.twin())
    if reference is None or problems:
        raise ValueError(problems)
    return network, reference


WAYS: Mapping[str, Callable[[Case], Any]] = {
    "float statistics": _float_statistics,
    "bias correction": _bias_corrected,
    "calibrated": _calibrated,
    "scale and bias": _scaled_and_bias_corrected,
    "statistics anew": _statistics_anew,
    "levels by outputs": _levels_by_outputs,
}


def main(argv: list[str]) -> None:
    """Measures what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    peer_task.one_thread()
    rows = read_csv(_OUTPUT.value)
    for name, bits in itertools.product(_TASKS.value, _BITS.value):
        if any((row["task"], row["bits"]) == (name, bits) for row in rows):
            continue
        rows.append(_measured(reconstruction_tasks.find_case(name, bits, 0, folder=_FOLDER.value)))
        write_csv(rows, _OUTPUT.value)
        print(*rows[-1].values(), flush=True)
    columns = ["task", "bits", *WAYS]
    rich.console.Console(width=160).print(as_table(rows, "top-1 in percent", columns))


def _measured(case: Case) -> dict[str, Any]:
    """Top-1 of each way, and the seconds that it takes with quantizing the model."""
    row: dict[str, Any] = {"task": case.file.stem, "kind": case.task.kind, "bits": case.bits}
    for way, corrected in WAYS.items():
        tf_keras.backend.clear_session()
        start = time.process_time()
        model = corrected(case)
        row[way] = f"{case.measured(model.predict_on_batch)['top1']:.2f}"
        row[f"{way}, seconds"] = f"{time.process_time() - start:.1f}"
        if corrected is _scaled_and_bias_corrected:
            row |= reconstruction_tasks.codes_of_file(case, model)
    return row


if __name__ == "__main__":
    app.run(main)
