"""Freezes what the package computes, and proves later that none of it has changed, bit for bit.

For every model of the zoo, every family under several policies, and the layer, block and task
models of the tests:

- the SHA-256 of the `.tflite` file, and of the codes of every tensor that its certificate names,
- the certificate, field by field, and the configuration in the `.keras` file, layer by layer,
- the table of `explain`, row by row ("plan" in the name).

For models of Keras 3: the configuration in the `.keras` file. For four models: the losses of
twenty training steps. For a classifier of digits: what `sat-tf quantize --epochs 1` writes at 8 and
at 4 bits, but for seconds, and for the two pages, which show what the other files hold. All on one
thread and from fixed seeds.

    python -m tests.frozen --write before.json     # at the commit to compare with
    python -m tests.frozen --against before.json   # later; exit status 1 where anything differs
    python -m tests.frozen --against before.json --only=residual

Only names that users import are used, so that the same script serves before and after modules move.
Float arithmetic is another one on another processor and with other versions, so both files must be
made on one machine; the file says on which, and another one is refused.
"""

import argparse
import csv
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras as keras3  # noqa: TID251 -- its models are frozen too
import numpy as np
import sklearn.datasets
import tensorflow as tf
import tf_keras as keras
import tqdm
from PIL import Image

import sat_tf
from sat_tf import BitPolicy
from tests.export import zoo
from tests.export.layer_models import MODELS as LAYER_MODELS
from tests.export.layer_models import detector, unet
from tests.export.models import test_grids
from tests.keras3 import models as keras3_models
from tests.training.small_networks import OPTIONS, build_small

_VERIFIED = 4  # images
_STEPS = 20
_BATCH_SIZE = 16
_POLICIES = {
    "mobile 8": BitPolicy.mobile(8),
    "mobile 4": BitPolicy.mobile(4),
    "mobile 2": BitPolicy.mobile(2),
    "mobile 4 requantized": BitPolicy.mobile(4, requantize_streams=True),
    "paper 4": BitPolicy.paper(4, latent_start="keep_function"),
    "weights 3": BitPolicy(weight_bits=3, activation_bits=None),
}
_TRAINED = {
    "mobilenet_v2": BitPolicy.mobile(4),
    "resnet18": BitPolicy.paper(3),
    "preresnet50": BitPolicy.mobile(2),
    "vgg16": BitPolicy.mobile(4, weight_grid="narrow", rescale="constant"),
}
_KERAS3 = ("classifier", "operations", "structures", "normalized", "mobile", "functions")
_LIBRARIES = (
    *("numpy", "tensorflow", "tf_keras", "tensorflow-model-optimization", "keras"),
    *("ai-edge-litert", "pillow"),
)
_DIGITS = 300
_LONGEST = 300  # characters of a value that is kept as it is; a longer one is hashed

# A certificate's fields that are those of the surroundings.
_OF_SURROUNDINGS = {
    "versions",  # sat-tf's own, and packages whose versions the file of results has anyway
    "machine",  # likewise
}
# Files of the command that are not compared as bytes.
_NO_BYTES = {
    "certificate.json",  # field by field
    "quantized.keras",  # layer by layer: an archive has the times of its files
    "results.json",  # value by value, without its seconds
    "reconstruction.json",  # its values are in results.json, too
    "certificate.html",  # a page of the certificate, with its versions
    "report.html",  # a page of the results, with their seconds
}


def _machine():
    """The facts that float arithmetic depends on."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(line.split("\t: ", 1) for line in lines if "\t: " in line)
    processor = facts.get("model name\t", facts.get("model name", platform.machine()))
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"processor": processor, "python": platform.python_version(), **versions}


def _calibrated(build, policy):
    keras.utils.set_random_seed(1)
    model = build()
    zoo.make_realistic(model)
    model = sat_tf.quantize_model(model, policy)
    return sat_tf.calibrate(model, zoo.images_for(model).astype(np.float32))


def _block(function):
    image = keras.Input((8, 8, 3), name="image")
    return keras.Model(image, function(image))


class _Exported(NamedTuple):
    """A model whose plan, configuration, file and certificate are frozen."""

    build: Callable[[], keras.Model]  # makes the float model
    policy: BitPolicy  # by which it is quantized
    settings: Mapping[str, Any] = {}  # of its file
    specimen: Any = None  # of the zoo, where it is one

    def quantized(self):
        return self.specimen.quantized() if self.specimen else _calibrated(self.build, self.policy)


def _exported():
    for name, one in zoo.ZOO.items():
        yield f"zoo {name}", _Exported(one.build, one.policy, {"float_head": one.float_head}, one)
    for name in OPTIONS:
        build = functools.partial(build_small, name)
        for label, policy in _POLICIES.items():
            yield f"family {name}, {label}", _Exported(build, policy)
        for pack in ("int4", "none"):
            model = _Exported(build, _POLICIES["mobile 2"], {"pack": pack})
            yield f"family {name}, mobile 2, {pack}", model
    blocks = {block.__name__: block for block in test_grids.BLOCKS}
    others = {f"layers {name}": kind.build for name, kind in LAYER_MODELS.items()}
    others |= {f"block {name}": functools.partial(_block, block) for name, block in blocks.items()}
    others |= {"task unet": unet, "task detector": detector}
    for name, build in others.items():
        yield name, _Exported(build, BitPolicy.mobile(4))


def _sha256(data):
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def _short(value):
    """A value as JSON, or its hash where that is long."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= _LONGEST else _sha256(text)


def _certificate(path):
    """The fields of a certificate, and those of each field that has names."""
    fields = {}
    for name, value in json.loads(path.read_text("utf-8")).items():
        if name in _OF_SURROUNDINGS:
            continue
        parts = value if isinstance(value, dict) else {"": value}
        fields |= {f"{name}.{part}".rstrip("."): _short(each) for part, each in parts.items()}
    return fields


def _without_homes(value):
    """A configuration without what moves with the code.

    Left out are the modules of sat-tf's classes, which Keras finds by their registered names, and
    the version of sat-tf that wrote the file.
    """
    if isinstance(value, list):
        return [_without_homes(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _without_homes(each)
        for name, each in value.items()
        if name != "sat_tf" and not (name == "module" and str(each).startswith("sat_tf"))
    }


def _configuration(path):
    """The configuration in a `.keras` file, by layer."""
    with zipfile.ZipFile(path) as archive:
        model = _without_homes(json.loads(archive.read("config.json")))
    layers = model["config"].pop("layers", [])
    parts = {layer["name"]: _short(layer) for layer in layers if "name" in layer}
    unnamed = [layer for layer in layers if "name" not in layer]  # of a Sequential model
    parts |= {layer["config"]["name"]: _short(layer) for layer in unnamed}
    return {**parts, "model": _short(model)}


def _saved(model):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        return _configuration(path)


def _hashes(model, settings):
    """The configuration of a quantized model, its file, its codes and its certificate."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = _saved(model)  # as it is before its biases are those of the file
        path = pathlib.Path(folder) / "model.tflite"
        sat_tf.export_tflite(model, path, **settings)
        certificate = sat_tf.verify_tflite(model, path, zoo.images_for(model, _VERIFIED))
        certificate.write(path.with_suffix(".json"))
        return {
            "file": _sha256(path.read_bytes()),
            "codes differing": certificate.codes_differing,
            "tensors": {codes.name: codes.sha256 for codes in certificate.codes},
            "certificate": _certificate(path.with_suffix(".json")),
            "configuration": configuration,
        }


def _plan(build, policy):
    """The table of `explain`, row by row."""
    keras.utils.set_random_seed(1)  # clipping levels start where the weights say
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.csv"
        sat_tf.explain(build(), policy).write_csv(path)
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
    plan = {f"{at} {' '.join(row[:2])}": _short(",".join(row)) for at, row in enumerate(rows)}
    return {"columns": " ".join(header), **plan}


def _keras3_configuration(name, policy):
    keras3.backend.clear_session()
    keras3.utils.set_random_seed(1)
    return _saved(sat_tf.quantize_model(getattr(keras3_models, name)(), policy))


def _write_digits(folder):
    """Writes pictures of digits in folders of classes, and a small classifier of them."""
    digits = sklearn.datasets.load_digits()
    pixels = np.round(digits.images[:_DIGITS] * (255 / 16)).astype(np.uint8)
    pixels = np.repeat(pixels[..., np.newaxis], 3, axis=-1)
    classes = digits.target[:_DIGITS]
    for number, (image, label) in enumerate(zip(pixels, classes, strict=True)):
        path = folder / "images" / str(label) / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    keras.utils.set_random_seed(0)
    layers = keras.layers
    image = keras.Input((8, 8, 3), name="image"), layers.Rescaling(1 / 255, name="rescaling")
    conv = layers.Conv2D(16, 3, use_bias=False, name="conv")
    norm = layers.BatchNormalization(momentum=0.9, name="bn"), layers.ReLU(name="relu")
    depthwise = layers.DepthwiseConv2D(3, padding="same", name="depthwise")
    head = layers.Flatten(name="flatten"), layers.Dense(10, name="classifier")
    relu6 = layers.ReLU(6.0, name="relu6")
    model = keras.Sequential([*image, conv, *norm, depthwise, relu6, *head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(pixels.astype(np.float32), classes, batch_size=50, epochs=10, verbose=0)
    model.save(folder / "digits.keras")


def _command(bits):
    """What `sat-tf quantize --epochs 1` writes for digits."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        _write_digits(folder)
        words = f"quantize digits.keras --images images --bits {bits} --epochs 1 --seed 0 --out run"
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
        command = [sys.executable, "-m", "sat_tf", *words.split()]
        settings = {"cwd": folder, "env": {**os.environ, **threads, "PYTHONPATH": path}}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
        if done.returncode not in (0, 1):  # 1: few bits cost a small model much
            raise RuntimeError(done.stderr)
        run = folder / "run"
        names = {path.name for path in run.iterdir() if path.is_file()}
        results = (run / "results.json").read_text("utf-8")

        def timeless(values):
            return {name: value for name, value in values.items() if name != "seconds"}

        return {
            "exit status": done.returncode,
            "files": {
                name: _sha256((run / name).read_bytes().replace(bytes(folder), b""))
                for name in sorted(names - _NO_BYTES)
            },
            "results": json.loads(results, object_hook=timeless),
            "certificate": _certificate(run / "certificate.json"),
            "configuration": _configuration(run / "quantized.keras"),
        }


def _losses(name, policy):
    """The losses of so many steps, in every bit."""
    keras.utils.set_random_seed(0)
    model = sat_tf.quantize_model(build_small(name), policy)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (_STEPS * _BATCH_SIZE, 32, 32, 3)).astype(np.float32)
    classes = rng.integers(0, 10, len(images))
    sat_tf.calibrate(model, images[:64])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    steps = [slice(start, start + _BATCH_SIZE) for start in range(0, len(images), _BATCH_SIZE)]
    return [float(model.train_on_batch(images[at], classes[at])).hex() for at in steps]


def _tasks(only):
    tasks: dict[str, Callable[[], Any]] = {}
    for name, model in _exported():
        tasks[name] = lambda model=model: _hashes(model.quantized(), model.settings)
        if "pack" not in model.settings:  # the plan is of the usual file
            tasks[f"plan {name}"] = lambda model=model: _plan(model.build, model.policy)
    for name in _KERAS3:
        for label, policy in _POLICIES.items():
            tasks[f"keras3 {name}, {label}"] = lambda name=name, policy=policy: (
                _keras3_configuration(name, policy)
            )
    for bits in (8, 4):
        tasks[f"command quantize, {bits} bits"] = lambda bits=bits: _command(bits)
    for name, policy in _TRAINED.items():
        tasks[f"training {name}"] = lambda name=name, policy=policy: _losses(name, policy)
    return {name: task for name, task in tasks.items() if only in name}


def _computed(only):
    results = {}
    for name, task in tqdm.tqdm(_tasks(only).items()):
        keras.backend.clear_session()
        try:
            results[name] = task()
        except Exception as error:  # what is refused, and how, is frozen too
            results[name] = f"{type(error).__name__}: {error}"
    return results


def _differences(before, after, where=""):
    """What differs, a line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            inside = f"{where} / {name}".removeprefix(" / ")
            yield from _differences(before.get(name), after.get(name), inside)
    elif before != after:
        yield f"{where}: was {before}, is {after}".removeprefix(": ")


def main():
    """Writes or compares; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=pathlib.Path, help="JSON file to write")
    what.add_argument("--against", type=pathlib.Path, help="JSON file to compare with")
    parser.add_argument("--only", default="", help="models with this in their name")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")  # the zoo is full of what is warned of
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    before: dict[str, Any] = {}
    if flags.against:
        frozen = json.loads(flags.against.read_text())
        if frozen["machine"] != _machine():
            print(f"{flags.against} is of another machine: {frozen['machine']}. Make it anew on")
            print(f"this one: {_machine()}.")
            return 2
        before = {name: each for name, each in frozen["results"].items() if flags.only in name}
    results = _computed(flags.only)
    if flags.write:
        flags.write.write_text(json.dumps({"machine": _machine(), "results": results}, indent=1))
        print(f"{len(results)} results in {flags.write}")
        return 0
    off = [name for name in before.keys() | results.keys() if before.get(name) != results.get(name)]
    for name in sorted(off):
        print(name)
        for line in _differences(before.get(name), results.get(name)):
            print(f"    {line}")
    print(f"{len(before)} results compared, {len(off)} differ")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
