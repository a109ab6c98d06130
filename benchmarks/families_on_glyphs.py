"""Trains a small net of every family on glyphs at 4 bits, and counts the same images three times.

Top-1 on held-out images is counted by Keras, by the integer simulator and by LiteRT, beside how
many codes differ between the last two, which is to be none.

    python benchmarks/families_on_glyphs.py
    python benchmarks/families_on_glyphs.py --families=resnet18,vgg16 --float_epochs=2
"""

import pathlib
import time
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import drawn_glyphs  # noqa: F401 -- the data set, which configurations name
import numpy as np
import rich.console
import tf_keras as keras
from absl import app, flags
from rows import as_table, write_csv

from sat_tf import output_folder
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.operations.graph import simulate
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from sat_tf.training import data
from sat_tf.training.config import Config
from sat_tf.training.data.source import ImageSet
from sat_tf.training.loop import runner
from sat_tf.training.run_folder import RunFolder

_SMALL_STEM = types.MappingProxyType({"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False})


class Family(NamedTuple):
    """How a small net of a family is built and trained.

    Attributes:
        options: of the model.
        learning_rate: of the float stage, for batches of 256 images.
        rescale: how weights without normalization behind them are rescaled.
    """

    options: Mapping[str, Any]
    learning_rate: float = 0.4
    rescale: str = "constant"


FAMILIES = {
    "mobilenet_v1": Family({"width_multiplier": 0.5, "stem_stride": 1}),
    "mobilenet_v2": Family({"width_multiplier": 0.5, "stem_stride": 1}),
    "resnet18": Family({"width_multiplier": 0.25, **_SMALL_STEM}),
    "resnet50": Family({"width_multiplier": 0.25, "stage_blocks": [1, 2, 2, 1], **_SMALL_STEM}),
    "preresnet50": Family({"width_multiplier": 0.25, "stage_blocks": [1, 2, 2, 1], **_SMALL_STEM}),
    # Nothing in it brings values back to their range: it needs small steps, and weights that keep
    # the variance they start with. Rescaled to 1 / fan-out, half of what rectified layers need,
    # fifteen layers make next to nothing of the image.
    "vgg16": Family({"width_multiplier": 0.25, "hidden_units": 256}, 0.01, "stddev"),
    "vgg16_bn": Family({"width_multiplier": 0.25, "hidden_units": 256}),
}

_FAMILIES = flags.DEFINE_list("families", list(FAMILIES), f"of {', '.join(FAMILIES)}")
_CLASSES = flags.DEFINE_integer("classes", 200, "how many characters", lower_bound=2)
_FLOAT_EPOCHS = flags.DEFINE_integer("float_epochs", 6, "of the float stage", lower_bound=1)
_QUANTIZED_EPOCHS = flags.DEFINE_integer("quantized_epochs", 3, "of the other", lower_bound=1)
_IMAGES = flags.DEFINE_integer("images", 1600, "held-out images to compare on", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "of weights and order of images", lower_bound=0)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/families.csv", "where to write rows")
_FOLDER = flags.DEFINE_string("folder", "runs/families", "where the runs put their files")

_BATCH_SIZE = 64
# The rest is in the CSV.
_SHOWN = ("family", "top-1 %, Keras", "top-1 %, simulator", "top-1 %, LiteRT", "codes differing")


def _config(name: str) -> Config:
    family = FAMILIES[name]
    return Config.model_validate(
        {
            "name": f"glyphs_{name}_w4a4",
            "seed": _SEED.value,
            "data": {"name": "glyphs", "options": {"num_classes": _CLASSES.value}},
            "model": {"name": name, "options": dict(family.options)},
            "policy": {
                "weight_bits": 4,
                "activation_bits": 4,
                "stream_bits": 8,
                "rescale": family.rescale,
            },
            "stages": {
                "float": {
                    "epochs": _FLOAT_EPOCHS.value,
                    "batch_size": _BATCH_SIZE,
                    "base_learning_rate": family.learning_rate,
                    "warmup_learning_rate": 0.0,
                    "warmup_epochs": 0.5,
                },
                # From a trained model, smaller steps.
                "quantized": {
                    "epochs": _QUANTIZED_EPOCHS.value,
                    "base_learning_rate": family.learning_rate / 4,
                },
            },
            "calibration": {"num_images": 1024, "final_statistics": True},
            "export": {"verify_images": _IMAGES.value},
        }
    )


def _compare(folder: RunFolder, images: ImageSet) -> dict[str, Any]:
    """Counts right images and differing codes of the model and the file that a run has left."""
    model = keras.models.load_model(folder.file(output_folder.QUANTIZED_MODEL), compile=False)
    graph = deployed_graph(Network(model))
    runtime = Runtime(folder.file(output_folder.TFLITE_MODEL).read_bytes(), keep_tensors=True)
    # Images are in the order of their classes: those compared are drawn from all of them.
    count = min(_IMAGES.value, len(images.test_labels))
    chosen = np.sort(np.random.RandomState(0).permutation(len(images.test_labels))[:count])
    right = {"Keras": 0, "simulator": 0, "LiteRT": 0}
    compared = differing = 0
    for start in range(0, count, _BATCH_SIZE):
        members = chosen[start : start + _BATCH_SIZE]
        pixels, labels = images.test_images[members], images.test_labels[members]
        simulated = simulate(graph, pixels)
        logits = {
            "Keras": model(pixels.astype(np.float32), training=False).numpy(),
            "simulator": simulated[graph.output],
            "LiteRT": runtime.run(pixels),
        }
        for name, values in logits.items():
            finite = np.all(np.isfinite(values), axis=1)  # the largest of NaN is class 0
            right[name] += int(np.sum(finite & (np.argmax(values, axis=1) == labels)))
        for name, computed in runtime.tensors(simulated).items():
            if graph.tensors[name].codes is not None:
                compared += computed.size
                differing += int(np.count_nonzero(computed != simulated[name]))
    return {
        **{f"top-1 %, {name}": f"{100 * hits / count:.2f}" for name, hits in right.items()},
        "images": count,
        "codes compared": compared,
        "codes differing": differing,
    }


def _measure(name: str, folder: pathlib.Path, console: rich.console.Console) -> dict[str, Any]:
    start = time.perf_counter()
    run = RunFolder(folder / name)
    config = _config(name)
    results = runner.train(config, run, console)
    if results is None:
        raise RuntimeError("received no results, expected those of a run on one machine.")
    images = data.load(config.data.name, **config.data.options)
    return {
        "family": name,
        "parameters": results.parameters,
        "top-1 %, float": f"{100 * results.float_top1:.2f}",
        **_compare(run, images),
        "Keras codes differing %": f"{100 * results.trained_differing:.3f}",
        "gzip bytes": results.gzip_bytes,
        "seconds": f"{time.perf_counter() - start:.0f}",
    }


def main(argv: list[str]) -> None:
    """Trains and measures every family, writing the CSV after each; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    unknown = [name for name in _FAMILIES.value if name not in FAMILIES]
    if unknown or not _FAMILIES.value:
        raise app.UsageError(f"--families: received {unknown}, expected {', '.join(FAMILIES)}.")
    console = rich.console.Console()
    rows: list[dict[str, Any]] = []
    for name in _FAMILIES.value:
        console.rule(name)
        rows.append(_measure(name, pathlib.Path(_FOLDER.value), console))
        write_csv(rows, _OUTPUT.value)
        keras.backend.clear_session()
    title = f"glyphs, {_CLASSES.value} classes, w4a4, {_FLOAT_EPOCHS.value} + "
    console.print(as_table(rows, f"{title}{_QUANTIZED_EPOCHS.value} epochs", _SHOWN))
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
