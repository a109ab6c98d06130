"""Takes every image model of `keras.applications` from Keras to a verified integer file.

    python benchmarks/applications.py
    python benchmarks/applications.py --models ResNet50 VGG16
    python benchmarks/applications.py --write docs/applications.md

Each model, in a process of its own, has random weights and the statistics of BatchNormalization
that photographs give it. It is quantized to 8 bits and calibrated, exported, verified code by code,
and trained for some steps. A row says what became of it, and how long it took beside TFMOT's
`quantize_model` and TensorFlow's converter. Models that have a row already are left out. `--write`
puts the table into a Markdown file.
"""

import pathlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import each_application
import numpy as np

_RESULTS = pathlib.Path(__file__).parent / "results" / "applications.csv"
_IMAGE_SIZE = 96
_NUM_CALIBRATED = 64
_NUM_COMPARED = 64
_NUM_VERIFIED = 2
_NUM_TRAINED = 8
_STEPS = 10


def photographs(count: int, image_size: int, seed: int) -> np.ndarray:
    """Parts of photographs, uint8 (count, image_size, image_size, 3)."""
    from sklearn.datasets import load_sample_images

    pictures = load_sample_images().images
    draw = np.random.default_rng(seed)
    found = []
    for index in range(count):
        picture = pictures[index % len(pictures)]
        zoom = int(draw.integers(1, 4))
        side = image_size * zoom
        top, left = (int(draw.integers(0, size - side + 1)) for size in picture.shape[:2])
        found.append(picture[top : top + side : zoom, left : left + side : zoom])
    return np.stack(found)


def take(name: str) -> dict[str, Any]:
    """Does all of it with one model; a row of the table."""
    import tf_keras as keras

    import sat_tf

    keras.utils.set_random_seed(0)
    build = getattr(keras.applications, name)
    # Logits: probabilities in the converter's 8 bits would come in steps of 1/256.
    model = build(
        weights=None, input_shape=(_IMAGE_SIZE, _IMAGE_SIZE, 3), classifier_activation=None
    )
    seen = photographs(_NUM_CALIBRATED, _IMAGE_SIZE, seed=1).astype(np.float32)
    others = photographs(_NUM_COMPARED, _IMAGE_SIZE, seed=2)
    _give_statistics(model, seen)
    row: dict[str, Any] = {"model": name, "parameters": model.count_params()}

    policy = sat_tf.BitPolicy.mobile(8, unsupported="float")
    row["unsupported"] = len(sat_tf.explain(model, sat_tf.BitPolicy.mobile(8)).problems)
    quantized, row["quantize_seconds"] = _timed(lambda: sat_tf.quantize_model(model, policy))
    _, row["calibrate_seconds"] = _timed(lambda: sat_tf.calibrate(quantized, seen))
    wanted, found = (_logits(each, others) for each in (model, quantized))
    row["correlation"], row["correlation_of_differences"] = _correlations(wanted, found)
    row |= _exported(quantized, others[:_NUM_VERIFIED])
    row["loss_before"], row["loss_after"] = _trained(quantized)
    _, row["tfmot_seconds"], row["tfmot_error"] = _tfmot(model)
    row |= _converted(model, seen, others, wanted)
    return row


def _give_statistics(model: Any, images: np.ndarray) -> None:
    """Gives BatchNormalization the statistics of the network as it is."""
    import tf_keras as keras

    from sat_tf.qat.calibrate import estimate_statistics
    from sat_tf.qat.operations import with_layers_for_operations

    twin = with_layers_for_operations(model)
    estimate_statistics(twin, images)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights(twin.get_layer(layer.name).get_weights())


def _timed(function: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    made = function()
    return made, round(time.perf_counter() - start, 2)


def _logits(model: Any, images: np.ndarray) -> np.ndarray:
    logits: np.ndarray = model.predict(images.astype(np.float32), batch_size=16, verbose=0)
    return logits


def _correlations(wanted: np.ndarray, found: np.ndarray) -> tuple[float, float]:
    """Of the logits; and of them without what all images have in common.

    That is most of the output of an untrained network, and says little.
    """
    pairs = ((wanted, found), (wanted - wanted.mean(axis=0), found - found.mean(axis=0)))
    first, second = (np.corrcoef(one.ravel(), other.ravel())[0, 1] for one, other in pairs)
    return round(float(first), 4), round(float(second), 4)


def _exported(quantized: Any, images: np.ndarray) -> dict[str, Any]:
    """What became of the export."""
    import sat_tf

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        try:
            _, seconds = _timed(lambda: sat_tf.export_tflite(quantized, path))
        except ValueError as error:
            empty = dict.fromkeys(_EXPORT_COLUMNS, "")
            return {**empty, "export_error": str(error).splitlines()[-1].strip(" -")}
        proof, verify_seconds = _timed(lambda: sat_tf.verify_tflite(quantized, path, images))
    return {
        "export_seconds": seconds,
        "verify_seconds": verify_seconds,
        "bytes": proof.bytes,
        "float_layers": len(proof.islands),
        "float_operators": sum(
            not operator.startswith("DEQUANTIZE") for operator in proof.float_operators
        ),
        "codes": proof.codes_compared,
        "differing_codes": proof.codes_differing,
        "export_error": "",
    }


_EXPORT_COLUMNS = (
    "export_seconds",
    "verify_seconds",
    "bytes",
    "float_layers",
    "float_operators",
    "codes",
    "differing_codes",
    "export_error",
)


def _trained(quantized: Any) -> tuple[float, float]:
    """The loss of one batch before and after some steps on it."""
    import tf_keras as keras

    images = photographs(_NUM_TRAINED, _IMAGE_SIZE, seed=3).astype(np.float32)
    classes = np.arange(_NUM_TRAINED)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    quantized.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss)
    losses = [float(quantized.train_on_batch(images, classes)) for _ in range(_STEPS)]
    return round(losses[0], 4), round(losses[-1], 4)


def _tfmot(model: Any) -> tuple[Any, float | str, str]:
    import tensorflow_model_optimization as tfmot

    try:
        return *_timed(lambda: tfmot.quantization.keras.quantize_model(model)), ""
    except Exception as error:  # of operations that it cannot clone, some are AttributeErrors
        return None, "", " ".join(str(error).split())[:120]


def _converted(
    model: Any, seen: np.ndarray, others: np.ndarray, wanted: np.ndarray
) -> dict[str, Any]:
    """What TensorFlow's converter makes of the float model in 8 bits, calibrated on as many."""
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[np.newaxis]] for image in seen)
    content, seconds = _timed(converter.convert)
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    (entry,), (end,) = interpreter.get_input_details(), interpreter.get_output_details()
    outputs = []
    for image in others.astype(np.float32):
        interpreter.set_tensor(entry["index"], image[np.newaxis])
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(end["index"])[0])
    all_images, differences = _correlations(wanted, np.array(outputs))
    return {
        "converter_seconds": seconds,
        "converter_correlation": all_images,
        "converter_correlation_of_differences": differences,
    }


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table, under the counts."""
    exported = [row for row in rows if not row["export_error"]]
    counts = {
        "quantized without a layer left float": sum(not int(row["unsupported"]) for row in rows),
        "train": sum(_trains(row) for row in rows),
        "exported": len(exported),
        "all integer but their ends": sum(not int(row["float_layers"]) for row in exported),
        "with 0 codes that differ": sum(not int(row["differing_codes"]) for row in exported),
        "taken by TFMOT": sum(row["tfmot_seconds"] != "" for row in rows),
    }
    lines = [
        f"Of {len(rows)} models: {', '.join(f'{count} {what}' for what, count in counts.items())}.",
        "",
        "| model | quantized | correlation: ours, the converter's | trains | exported "
        "| codes that differ | quantize: ours, TFMOT's | export, converter |",
        "| --- | --- | ---: | --- | --- | ---: | ---: | ---: |",
    ]
    lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def _line(row: Mapping[str, Any]) -> str:
    unsupported = int(row["unsupported"])
    quantized = f"all but {unsupported} layers" if unsupported else "all"
    if row["export_error"]:
        exported, exact = f"no: {row['export_error']}", "-"
    else:
        left = int(row["float_layers"])
        exported = f"{left} layers in float" if left else "all integer"
        exact = f"{row['differing_codes']} of {int(row['codes']):,}"
    theirs = f"{row['tfmot_seconds']} s" if row["tfmot_seconds"] != "" else "refused"
    return (
        f"| {row['model']} | {quantized} "
        f"| {float(row['correlation']):.3f}, {float(row['converter_correlation']):.3f} "
        f"| {'yes' if _trains(row) else 'no'} | {exported} | {exact} "
        f"| {row['quantize_seconds']} s, {theirs} "
        f"| {row['export_seconds']} s, {row['converter_seconds']} s |"
    )


def _trains(row: Mapping[str, Any]) -> bool:
    return float(row["loss_after"]) < float(row["loss_before"])


if __name__ == "__main__":
    each_application.main(__file__, __doc__, results=_RESULTS, make_row=take, markdown=markdown)
