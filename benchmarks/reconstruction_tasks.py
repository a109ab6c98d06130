"""The float models, the examples and the measure of the benchmarks of reconstruction.

Eight float models, trained once each and kept in a folder, and examples without labels, which a
seed chooses from those that the float model was trained on. Top-1 is counted on examples that no
float model was trained on.
"""

import dataclasses
import functools
import importlib
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pretrained_tasks
import tf_keras
from drawn_glyphs import load_glyphs
from pretrained_tasks import Arrays, Task

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models

FOLDER = "runs/reconstruction"
_VERIFIED_IMAGES = 64


def _characters(count: int, *, classes: int, train_per_class: int, test_per_class: int) -> Arrays:
    """Printed characters: those to train on, in an order drawn by lot, and those held out."""
    of_each = {"train_per_class": train_per_class, "test_per_class": test_per_class}
    found = load_glyphs(num_classes=classes, **of_each)
    order = np.random.default_rng(0).permutation(len(found.train_images))
    pictures = np.concatenate([found.train_images[order], found.test_images])
    labels = np.concatenate([found.train_labels[order], found.test_labels])
    return pictures[:count], labels[:count].astype(np.int32)


def _of_characters(classes: int, train_per_class: int, test_per_class: int, **fields: Any) -> Task:
    of_each = {"train_per_class": train_per_class, "test_per_class": test_per_class}
    return Task(
        draw=functools.partial(_characters, classes=classes, **of_each),
        train=classes * train_per_class,
        held_out=classes * test_per_class,
        classes=classes,
        batch_size=64,
        **fields,
    )


def _small_mobilenet(keras: Any, classes: int) -> Any:
    return models.build("mobilenet_v2_small", image_size=24, num_classes=classes, seed=0)


def _small_resnet(keras: Any, classes: int) -> Any:
    small = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
    sizes = {"width_multiplier": 0.25, "stage_blocks": (2, 2, 2)}
    return models.build("resnet18", image_size=24, num_classes=classes, seed=0, **small, **sizes)


_OF_PRETRAINED = pretrained_tasks.TASKS
_ARROWS = dataclasses.replace(_OF_PRETRAINED["arrows"], held_out=2000)
TASKS: Mapping[str, Task] = {
    "digits": _OF_PRETRAINED["digits"],
    "glyphs_50": _of_characters(
        50, 64, 40, kind="glyphs, 50 characters", network=_small_mobilenet, epochs=15
    ),
    "glyphs_1000": _of_characters(
        1000, 64, 8, kind="glyphs, 1,000 characters", network=_small_mobilenet, epochs=2
    ),
    "shapes": dataclasses.replace(_OF_PRETRAINED["shapes_1000"], held_out=2000),
    "signals": dataclasses.replace(
        _OF_PRETRAINED["signals"], held_out=2000, kind="signals, Conv1D"
    ),
    "residual": _of_characters(100, 64, 20, kind="glyphs, ResNet", network=_small_resnet, epochs=5),
    "squeeze": dataclasses.replace(_ARROWS, keras3=False, kind="arrows, squeeze-and-excitation"),
    "keras3": dataclasses.replace(
        _of_characters(
            30,
            64,
            64,
            kind="glyphs, gated, Keras 3",
            network=pretrained_tasks.gated_net,
            epochs=15,
        ),
        keras3=True,
    ),
}

POLICIES: Mapping[str, BitPolicy] = {
    "w4a4": BitPolicy.mobile(4),
    "w4a8": BitPolicy.mobile(8, weight_bits=4),
    "w8a4": BitPolicy.mobile(4, weight_bits=8),
    "w3a3": BitPolicy.mobile(3),
    "w2a4": BitPolicy.mobile(4, weight_bits=2),
    "w2a2": BitPolicy.mobile(2),
}
Result = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """The case that a row is of.

    Attributes:
        task: what the float model has learned.
        file: of the float model.
        bits: a name of `POLICIES`.
        seed: of what is drawn by lot.
        images: without labels, which all methods have.
        held_out: examples to measure on.
        of_float: the classes that the float model gives them; None while they are not known.
        seconds: that methods have which would train for ever.
    """

    task: Task
    file: pathlib.Path
    bits: str
    seed: int
    images: np.ndarray
    held_out: Arrays
    of_float: np.ndarray | None = None
    seconds: float = 0.0

    def float_model(self) -> Any:
        """The float model, of its own Keras."""
        keras = importlib.import_module("keras") if self.task.keras3 else tf_keras
        return keras.models.load_model(self.file, compile=False)

    def twin(self) -> tf_keras.Model:
        """The float model in tf_keras."""
        model = self.float_model()
        return sat_tf.from_keras3(model) if self.task.keras3 else model

    def measured(self, answers: Callable[[np.ndarray], Any]) -> dict[str, float]:
        """Top-1, and how many of the float model's answers are kept, in percent.

        Of the largest answers that are equal, as integers can be, each has a share. An example with
        an answer that is not finite counts as wrong.
        """
        pictures, labels = self.held_out
        logits = in_batches(answers, pictures)
        largest = logits == logits.max(axis=-1, keepdims=True)
        finite = np.isfinite(logits).all(axis=-1, keepdims=True)
        shares = np.where(finite, largest / np.maximum(largest.sum(axis=-1, keepdims=True), 1), 0.0)

        def percent(classes: np.ndarray) -> float:
            return 100.0 * float(np.mean(shares[np.arange(len(labels)), classes]))

        kept = {} if self.of_float is None else {"kept": percent(self.of_float)}
        return {"top1": percent(labels), **kept}


def in_batches(answers: Callable[[np.ndarray], Any], pictures: np.ndarray) -> np.ndarray:
    """The answers for all pictures, of which some are given at once."""
    starts = range(0, len(pictures), 250)
    parts = [pictures[start : start + 250].astype(np.float32) for start in starts]
    return np.concatenate([np.asarray(answers(part)) for part in parts])


@functools.lru_cache(maxsize=1)
def _examples(name: str) -> tuple[Arrays, Arrays]:
    return TASKS[name].examples()


def find_case(
    name: str, bits: str, seed: int, *, folder: str = FOLDER, count: int = 512, **fields: Any
) -> Case:
    """The case of a task, whose float model is trained if the folder does not have it.

    Args:
        name: of the task.
        bits: a name of `POLICIES`.
        seed: of what is drawn by lot.
        folder: of float models.
        count: of the examples without labels.
        **fields: others of the case.
    """
    task, (train, held_out) = TASKS[name], _examples(name)
    file = pathlib.Path(folder) / f"{name}{'.keras' if task.keras3 else '.h5'}"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        task.trained(train, held_out).save(file)
    chosen = np.random.default_rng(seed).permutation(len(train[0]))[:count]
    return Case(
        task=task,
        file=file,
        bits=bits,
        seed=seed,
        images=train[0][chosen],
        held_out=held_out,
        **fields,
    )


def calibrated(case: Case, model: Any, **settings: Any) -> Any:
    """The quantized and calibrated model of a float one, with settings of `sat_tf.calibrate`."""
    policy = POLICIES[case.bits]
    if case.images.dtype == np.uint8:
        policy = dataclasses.replace(policy, input_range=(0, 255))
    else:
        policy = dataclasses.replace(policy, input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    count = len(case.images)
    sat_tf.calibrate(quantized, case.images, num_images=count, **settings, progress=False)
    return quantized


def calibrate_alone(case: Case) -> Result:
    """Calibrates alone."""
    start = time.process_time()
    quantized = calibrated(case, case.float_model())
    seconds = time.process_time() - start
    return {**case.measured(quantized.predict_on_batch), "seconds": seconds}


def reconstruct(case: Case) -> Result:
    """Calibrates and reconstructs; the file of the first seed is verified."""
    model = case.float_model()
    quantized = calibrated(case, model)
    start = time.process_time()
    fit(case, model, quantized)
    seconds = time.process_time() - start
    result = {**case.measured(quantized.predict_on_batch), "seconds": seconds}
    return result if case.seed else {**result, **codes_of_file(case, quantized)}


def fit(case: Case, model: Any, quantized: Any, **settings: Any) -> None:
    """Reconstructs a calibrated model in place, with settings of `sat_tf.reconstruct`."""
    settings = {"num_images": len(case.images), "seed": case.seed, "progress": False, **settings}
    sat_tf.reconstruct(quantized, model, case.images, **settings)


def codes_of_file(case: Case, quantized: Any) -> Result:
    """How many codes of a model's file were compared, and how many differ."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        sat_tf.export_tflite(quantized, path)
        of_file = sat_tf.verify_tflite(quantized, path, case.held_out[0][:_VERIFIED_IMAGES])
    return {name: getattr(of_file, name) for name in ("codes_compared", "codes_differing")}
