"""Takes every image model of `keras.applications` from Keras to a verified integer file.

    python benchmarks/applications.py
    python benchmarks/applications.py --models ResNet50 VGG16

Each model, in a process of its own, first learns for a minute or so to tell apart the quarters of
two photographs, by random crops: random weights would only amplify each rounding. It is quantized
to 8 bits and calibrated, exported, verified code by code, and trained for some steps. A row says
what became of it, and how long it took beside TFMOT's `quantize_model` and TensorFlow's converter.
A model that 8 bits disturb because it has hardly learnt yet learns for longer, and its row says so.
Models that have a row already are left out.
"""

import functools
import pathlib
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import each_application
import numpy as np

_RESULTS = pathlib.Path(__file__).parent / "results" / "applications.csv"
_IMAGE_SIZE = 96
# Steps of the float model in its first lesson, and in others while 8 bits disturb its logits: with
# the statistics that BatchNormalization has in inference, so that no image is new to those.
_FLOAT_STEPS = (80, 240, 480)
_SEEDS = (1, 4, 5)
_SMOOTHING = 0.1  # of labels: that of the recipes of EfficientNet and RegNet
_NUM_MEASURED = (64, 512)
_NUM_CALIBRATED = 64
_UNDISTURBED = 0.99
_FLOAT_BATCH_SIZE = 16
_NUM_COMPARED = 64
_NUM_VERIFIED = 2
_NUM_TRAINED = 16
_STEPS = 12
_LEARNING_RATES = (0.003, 0.001, 0.0003)
_QUARTERS = 4


def crops(count: int, image_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Parts of photographs, uint8 (count, image_size, image_size, 3), and the quarter of each."""
    from sklearn.datasets import load_sample_images

    pictures = load_sample_images().images
    draw = np.random.default_rng(seed)
    images, classes = [], draw.integers(0, _QUARTERS * len(pictures), count)
    for index in classes:
        picture = pictures[index // _QUARTERS]
        height, width = (size // 2 for size in picture.shape[:2])
        row, column = divmod(index % _QUARTERS, 2)
        quarter = picture[row * height :, column * width :][:height, :width]
        zoom = int(draw.integers(1, 3))
        side = image_size * zoom
        top, left = (int(draw.integers(0, size - side + 1)) for size in quarter.shape[:2])
        image = quarter[top : top + side : zoom, left : left + side : zoom]
        images.append(image[:, ::-1] if draw.random() < 0.5 else image)
    return np.stack(images), classes


def take(name: str) -> dict[str, Any]:
    """Does all of it with one model; a row of the table."""
    import tf_keras as keras

    import sat_tf

    keras.utils.set_random_seed(0)
    build = getattr(keras.applications, name)
    # Logits: probabilities in the converter's 8 bits would come in steps of 1/256.
    model = build(
        weights=None,
        input_shape=(_IMAGE_SIZE, _IMAGE_SIZE, 3),
        classes=_QUARTERS * 2,
        classifier_activation=None,
    )
    others, classes = crops(_NUM_COMPARED, _IMAGE_SIZE, seed=2)
    row: dict[str, Any] = {"model": name, "parameters": model.count_params()}

    policy = sat_tf.BitPolicy.mobile(8, unsupported="float")
    row["unsupported"] = len(sat_tf.explain(model, sat_tf.BitPolicy.mobile(8)).problems)
    seen = crops(_NUM_CALIBRATED, _IMAGE_SIZE, seed=1)[0].astype(np.float32)
    for lesson in range(len(_FLOAT_STEPS)):
        _learn(model, lesson)
        quantized, row["quantize_seconds"] = _timed(lambda: sat_tf.quantize_model(model, policy))
        _, row["calibrate_seconds"] = _timed(functools.partial(sat_tf.calibrate, quantized, seen))
        wanted, found = (_logits(each, others) for each in (model, quantized))
        row["correlation"] = _correlation(wanted, found)
        row["float_steps"] = sum(_FLOAT_STEPS[: lesson + 1])
        row.setdefault("first_correlation", row["correlation"])
        if row["correlation"] > _UNDISTURBED:
            break
    row["top1_float"], row["top1"] = (_top1(logits, classes) for logits in (wanted, found))
    row |= _exported(quantized, others[:_NUM_VERIFIED])
    row |= _trained(quantized)
    _, row["tfmot_seconds"], row["tfmot_error"] = _tfmot(model)
    row |= _converted(model, seen, others, wanted)
    return row


def _learn(model: Any, lesson: int) -> None:
    """Trains the float model further.

    First on the statistics of each batch, and then BatchNormalization gets those of the result; or
    on such statistics, frozen, as inference has them, and with smoothed labels, so that no image
    gets logits far from the others'.
    """
    import tf_keras as keras

    norms = [x for x in model.layers if isinstance(x, keras.layers.BatchNormalization)]
    steps, on_batch_statistics = _FLOAT_STEPS[lesson], lesson == 0
    images, classes = crops(steps * _FLOAT_BATCH_SIZE, _IMAGE_SIZE, seed=_SEEDS[lesson])
    if on_batch_statistics:
        optimizer = keras.optimizers.Adam(1e-3 if norms else 1e-4)
    else:
        _measure_statistics(model, norms, images[: _NUM_MEASURED[1]])
        # With frozen statistics the first losses can be large.
        falling = keras.optimizers.schedules.CosineDecay(5e-4 if norms else 1e-4, steps)
        optimizer = keras.optimizers.Adam(falling, clipnorm=1.0)
    for layer in norms:
        layer.trainable = on_batch_statistics
    smoothing = 0.0 if on_batch_statistics else _SMOOTHING
    model.compile(optimizer, keras.losses.CategoricalCrossentropy(True, label_smoothing=smoothing))
    labels = keras.utils.to_categorical(classes, _QUARTERS * 2)
    for start in range(0, len(images), _FLOAT_BATCH_SIZE):
        batch = slice(start, start + _FLOAT_BATCH_SIZE)
        model.train_on_batch(images[batch].astype(np.float32), labels[batch])
    if on_batch_statistics:
        _measure_statistics(model, norms, images[: _NUM_MEASURED[0]])


def _measure_statistics(model: Any, norms: Sequence[Any], images: np.ndarray) -> None:
    """Gives the normalizations of a model the statistics of images."""
    from sat_tf.graph.rewrite import network_of_layers
    from sat_tf.qat.calibrate import estimate_statistics

    if not norms:
        return
    twin = network_of_layers(model).model
    estimate_statistics(twin, images.astype(np.float32))
    for layer in norms:
        layer.set_weights(twin.get_layer(layer.name).get_weights())


def _timed(function: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    made = function()
    return made, round(time.perf_counter() - start, 2)


def _logits(model: Any, images: np.ndarray) -> np.ndarray:
    logits: np.ndarray = model.predict(images.astype(np.float32), batch_size=16, verbose=0)
    return logits


def _top1(logits: np.ndarray, classes: np.ndarray) -> float:
    return round(100.0 * float(np.mean(np.argmax(logits, axis=-1) == classes)), 1)


def _correlation(wanted: np.ndarray, found: np.ndarray) -> float:
    return round(float(np.corrcoef(wanted.ravel(), found.ravel())[0, 1]), 4)


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
        "float_layers": len(proof.float_layers),
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


def _trained(quantized: Any) -> dict[str, float]:
    """The loss of one batch in the first and in the last three of some steps on it.

    The mean of three: in training, some of these models drop out. With the largest learning rate
    of some that lets it fall.
    """
    import tf_keras as keras

    images, classes = crops(_NUM_TRAINED, _IMAGE_SIZE, seed=3)
    images = images.astype(np.float32)
    start = quantized.get_weights()
    for rate in _LEARNING_RATES:
        quantized.set_weights(start)
        quantized.compile(
            keras.optimizers.SGD(rate, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        losses = [float(quantized.train_on_batch(images, classes)) for _ in range(_STEPS)]
        first, last = (float(np.mean(part)) for part in (losses[:3], losses[-3:]))
        if last < first:
            break
    return {
        "learning_rate": rate,
        "loss_before": round(first, 4),
        "loss_after": round(last, 4),
    }


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
    found = np.array(outputs)
    return {"converter_seconds": seconds, "converter_correlation": _correlation(wanted, found)}


if __name__ == "__main__":
    each_application.main(__file__, __doc__, results=_RESULTS, make_row=take)
