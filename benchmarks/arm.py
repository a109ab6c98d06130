"""Files of every family, policy and packing on x86, on three emulated Arm processors, and on Micro.

Every code of every tensor is compared with the simulation. Weights are random, γ may be negative or
dead, and clipping levels are calibrated. Beside the counts stands how many scales of products and
means were moved so that all rules of XNNPACK agree, and by how many units in the last place.

    python -m tests.arm.system
    PYTHONPATH=. python benchmarks/arm.py
    PYTHONPATH=. python benchmarks/arm.py --files=mobilenet,gates --images=4
"""

import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import rich.console
import rich.progress
import tf_keras as keras
from absl import app, flags
from full_size import make_realistic, smooth_images
from rows import as_table, write_csv
from small_networks import NETWORKS

import sat_tf
from sat_tf.exact.certificate.proof import read_subject
from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models
from tests.arm.system import check_on_arm, find_system

L = keras.layers

_SIZE, _CLASSES = 32, 10


class File(NamedTuple):
    """A file to run.

    Attributes:
        model: its kind.
        policy: of its model, in words.
        build: makes the float model.
        fields: the policy.
        pack: how its kernels are stored.
    """

    model: str
    policy: str
    build: Callable[[], keras.Model]
    fields: BitPolicy
    pack: str = "auto"

    @property
    def name(self) -> str:
        """All of it in words."""
        return f"{self.model} {self.policy} {self.pack}"


_FAMILIES: dict[str, dict[str, Any]] = {
    "mobilenet_v1": {"width_multiplier": 0.5},
    "mobilenet_v2": {"width_multiplier": 0.5},
    "resnet18": {"width_multiplier": 0.25, "stem_pool": False},
    "resnet50": {"width_multiplier": 0.25, "stage_blocks": [1, 1, 1, 1], "stem_pool": False},
    "preresnet50": {"width_multiplier": 0.25, "stage_blocks": [1, 1, 1, 1], "stem_pool": False},
    "vgg16_bn": {"width_multiplier": 0.25, "hidden_units": 128},
}
_POLICIES = {
    "w4a4": BitPolicy.mobile(4),
    "w3a3": BitPolicy.mobile(3),
    "w2a2": BitPolicy.mobile(2),
    "w8a8": BitPolicy.mobile(8),
    "w4a4 float streams": BitPolicy.paper(4, latent_start="keep_function"),
    "w4a8": BitPolicy.mobile(8, weight_bits=4),
    "w2a2 rounded": BitPolicy.mobile(2, weight_grid="rounded"),
}


def _family(name: str) -> Callable[[], keras.Model]:
    return lambda: getattr(models, name)(_SIZE, _CLASSES, seed=0, **_FAMILIES[name])


def _gates() -> keras.Model:
    """Squeeze and excitation in every block: products and means."""
    image = keras.Input((_SIZE, _SIZE, 3), name="image")
    tensor = L.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(image)
    tensor = L.ReLU()(L.BatchNormalization()(tensor))
    for index, channels in enumerate((16, 24, 32, 40)):
        squeezed = L.GlobalAveragePooling2D(keepdims=True)(tensor)
        squeezed = L.Conv2D(8, 1, activation="relu")(squeezed)
        gate = L.Conv2D(tensor.shape[-1], 1, activation="sigmoid")(squeezed)
        tensor = L.Multiply()([tensor, gate])
        tensor = L.Conv2D(channels, 3, strides=1 + index % 2, padding="same", use_bias=False)(
            tensor
        )
        tensor = L.ReLU()(L.BatchNormalization()(tensor))
    return keras.Model(image, L.Dense(_CLASSES)(L.GlobalAveragePooling2D()(tensor)))


def _pools() -> keras.Model:
    """Pools of all kinds, with and without padding, and means of several sizes."""
    image = keras.Input((_SIZE, _SIZE, 3), name="image")
    tensor = L.Conv2D(16, 3, padding="same", activation="relu")(image)
    parts = [
        L.MaxPooling2D(3, 2, padding="same")(tensor),
        L.AveragePooling2D(2, 2)(tensor),
        L.AveragePooling2D(3, 2, padding="same")(tensor),
    ]
    tensor = L.Conv2D(24, 3, activation="relu")(L.Concatenate()(parts))
    means = [
        L.GlobalAveragePooling2D()(tensor),
        L.GlobalAveragePooling2D()(L.MaxPooling2D(2)(tensor)),
        L.GlobalMaxPooling2D()(tensor),
    ]
    return keras.Model(image, L.Dense(_CLASSES)(L.Concatenate()(means)))


def _pairs() -> keras.Model:
    """Sums, differences, products and extrema of two tensors."""
    image = keras.Input((_SIZE, _SIZE, 3), name="image")
    one = L.Conv2D(16, 3, strides=2, padding="same", activation="relu")(image)
    other = L.Conv2D(16, 3, strides=2, padding="same", activation="relu")(image)
    made = [
        layer()([one, other]) for layer in (L.Add, L.Subtract, L.Multiply, L.Maximum, L.Minimum)
    ]
    tensor = L.Conv2D(32, 3, strides=2, activation="relu")(L.Concatenate()(made))
    return keras.Model(image, L.Dense(_CLASSES)(L.GlobalAveragePooling2D()(tensor)))


def _files() -> Iterator[File]:
    for name in _FAMILIES:
        yield File(name, "w4a4", _family(name), _POLICIES["w4a4"])
    for name in ("mobilenet_v1", "mobilenet_v2", "resnet18"):
        for policy in ("w3a3", "w2a2", "w8a8", "w4a4 float streams"):
            yield File(name, policy, _family(name), _POLICIES[policy])
    for name in ("mobilenet_v2", "resnet18"):
        for policy, pack in (
            ("w4a4", "none"),
            ("w4a8", "auto"),
            ("w4a4", "int4"),
            ("w3a3", "int4"),
        ):
            yield File(name, policy, _family(name), _POLICIES[policy], pack)
    # Nothing of ResNet-18 fits INT2 in XNNPACK but its strided shortcuts, which are convolutions.
    for name in ("mobilenet_v1", "mobilenet_v2"):
        rounded = "w2a2 rounded"
        yield File(name, rounded, _family(name), _POLICIES[rounded], "int2")
    own: dict[str, Callable[[], keras.Model]] = {"gates": _gates, "pools": _pools, "pairs": _pairs}
    own |= {name: NETWORKS[name].build for name in ("MBConv", "DenseNet", "Inception", "U-Net")}
    for name, build in own.items():
        for policy in ("w4a4", "w8a8") if name in NETWORKS else ("w4a4", "w2a2", "w8a8"):
            yield File(name, policy, build, _POLICIES[policy])


_FILES = flags.DEFINE_list("files", [], "parts of the names of files; all where none are given")
_IMAGES = flags.DEFINE_integer("images", 8, "images to compare on", lower_bound=1)
_CALIBRATION = flags.DEFINE_integer("calibration_images", 32, "images to calibrate on", 1)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/arm.csv", "where to write rows")

# The titles of XNNPACK's kernels, by the feature of the processor that they need.
_KERNELS = {"asimd": "NEON", "asimddp": "dot product", "i8mm": "matrix (i8mm)"}
_RUNTIMES = ("xnnpack", "arm_xnnpack", "arm_builtin", "micro")
_SHOWN = (
    *("model", "policy", "pack", "codes compared", "x86", *_KERNELS.values()),
    *("Arm, simulated", "Micro", "moved", "farthest"),
)


def _measure(file: File, folder: pathlib.Path) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    model = file.build()
    make_realistic(model)
    shape = tuple(model.input_shape[1:])
    pictures = smooth_images(_CALIBRATION.value + _IMAGES.value, shape[0])[..., : shape[-1]]
    calibration, held_out = np.split(pictures, [_CALIBRATION.value])
    quantized = sat_tf.quantize_model(model, file.fields)
    sat_tf.calibrate(quantized, calibration.astype(np.float32))
    path = folder / "model.tflite"
    report = sat_tf.export_tflite(quantized, path, pack=file.pack)
    graph = deployed_graph(Network(quantized), pack=file.pack)
    names = [name for name in _RUNTIMES if is_installed(name)]
    start = time.perf_counter()
    certificate = sat_tf.verify_tflite(quantized, path, held_out, runtimes=names)
    checks = check_on_arm(read_subject(path), held_out, find_system())
    on_arm = {_KERNELS[check.kernels]: check for check in checks}
    moved = {abs(units) for name, units in graph.moved_scales.items() if name in _rounded(graph)}
    return {
        "model": file.model,
        "policy": file.policy,
        "pack": file.pack,
        "images": len(held_out),
        "tensors": len(certificate.codes),
        "codes compared": certificate.codes_compared,
        "x86": certificate.codes_differing,
        **{kernels: check.codes_differing for kernels, check in on_arm.items()},
        "Arm, simulated": _differing(certificate, "arm_xnnpack"),
        "Arm, builtin, simulated": _differing(certificate, "arm_builtin"),
        "Micro": _differing(certificate, "micro"),
        "Micro, from its simulation": _from_own(certificate, "micro"),
        "portable": certificate.is_portable,
        "products and means": len(_rounded(graph)),
        "moved": len([n for n in graph.moved_scales if n in _rounded(graph)]),
        "farthest": max(moved, default=0),
        "bytes": report.bytes,
        "seconds": f"{time.perf_counter() - start:.1f}",
    }


def _rounded(graph: Any) -> set[str]:
    """The tensors of products and means, whose inputs are enumerated."""
    return {op.output for op in graph.operations if op.portability(graph).inputs}


def _differing(certificate: Any, runtime: str) -> int | str:
    if runtime in certificate.runtimes:
        return int(certificate.runtimes[runtime].codes_differing)
    return "refused" if runtime in certificate.refused else "not run"


def _from_own(certificate: Any, runtime: str) -> int | str:
    """How many codes differ from the simulation of the runtime's own kernels."""
    if runtime not in certificate.runtimes:
        return ""
    found = certificate.runtimes[runtime]
    return f"{found.own_differing} of {found.own_compared}"


def main(argv: list[str]) -> None:
    """Runs every file everywhere."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    wanted = [
        file for file in _files() if not _FILES.value or any(n in file.name for n in _FILES.value)
    ]
    if not wanted:
        raise app.UsageError(f"--files={','.join(_FILES.value)}: received no part of any name.")
    rows = []
    console = rich.console.Console()
    with tempfile.TemporaryDirectory() as folder, rich.progress.Progress(console=console) as bar:
        task = bar.add_task("files", total=len(wanted))
        for file in wanted:
            bar.update(task, description=file.name)
            rows.append(_measure(file, pathlib.Path(folder)))
            write_csv(rows, _OUTPUT.value)
            keras.backend.clear_session()
            bar.advance(task)
    console.print(as_table(rows, "codes that differ from the simulation", _SHOWN))


if __name__ == "__main__":
    app.run(main)
