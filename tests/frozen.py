"""Freezes what the package computes, and proves later that none of it has changed, bit for bit.

For every model of the zoo, every family under several policies, and the layer, block and task
models of the tests: the SHA-256 of the `.tflite` file, and of the codes of every tensor that its
certificate names. For four models: the losses of twenty training steps, on one thread and from a
fixed seed.

    python -m tests.frozen --write before.json     # at the commit to compare with
    python -m tests.frozen --against before.json   # later; exit status 1 where anything differs
    python -m tests.frozen --against before.json --only=residual

Only names that users import are used, so that the same script serves before and after modules move.
Float arithmetic is another one on another processor and with other versions, so both files must be
made on one machine; the file says on which, and another one is refused.
"""

import argparse
import hashlib
import json
import pathlib
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
import tqdm

import sat_tf
from sat_tf import models
from sat_tf.qat.policy import BitPolicy
from sat_tf.version import installed_versions
from tests.export import zoo
from tests.export.layer_models import MODELS as LAYER_MODELS
from tests.export.models import test_blocks
from tests.export.task_models import detector, unet
from tests.models.small import build_small

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


def _machine() -> dict[str, str]:
    """The facts that float arithmetic depends on."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(line.split("\t: ", 1) for line in lines if "\t: " in line)
    processor = {
        "processor": facts.get("model name\t", facts.get("model name", platform.machine()))
    }
    return {**processor, **installed_versions()}


def _calibrated(build: Callable[[], keras.Model], policy: BitPolicy) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = build()
    zoo.make_realistic(model)
    model = sat_tf.quantize_model(model, policy)
    return sat_tf.calibrate(model, zoo.images_for(model).astype(np.float32))


def _block(function: Callable[[Any], Any]) -> keras.Model:
    image = keras.Input((8, 8, 3), name="image")
    return keras.Model(image, function(image))


def _exported() -> Iterator[tuple[str, Callable[[], keras.Model], dict[str, Any]]]:
    """Names, makers of quantized models, and settings of their files."""
    for name, specimen in zoo.ZOO.items():
        yield f"zoo {name}", specimen.quantized, {"float_head": specimen.float_head}
    for name in models.MODELS:
        for label, policy in _POLICIES.items():

            def family(name: str = name, policy: BitPolicy = policy) -> keras.Model:
                return _calibrated(lambda: build_small(name), policy)

            yield f"family {name}, {label}", family, {}
            if label == "mobile 2":
                yield f"family {name}, {label}, int4", family, {"pack": "int4"}
                yield f"family {name}, {label}, none", family, {"pack": "none"}
    policy = BitPolicy.mobile(4)
    others = {f"layers {name}": kind.build for name, kind in LAYER_MODELS.items()}
    others |= {
        f"block {block.__name__}": lambda block=block: _block(block) for block in test_blocks.BLOCKS
    }
    others |= {"task unet": unet, "task detector": detector}
    for name, build in others.items():
        yield name, lambda build=build: _calibrated(build, policy), {}


def _hashes(model: keras.Model, settings: dict[str, Any]) -> dict[str, Any]:
    """Hashes of the file, and of the codes of its tensors."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        sat_tf.export_tflite(model, path, **settings)
        found = sat_tf.verify_tflite(model, path, zoo.images_for(model, _VERIFIED))
        return {
            "file": hashlib.sha256(path.read_bytes()).hexdigest(),
            "codes differing": found.codes_differing,
            "tensors": {codes.name: codes.sha256 for codes in found.codes},
        }


def _losses(name: str, policy: BitPolicy) -> list[str]:
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


def _tasks(only: str) -> dict[str, Callable[[], Any]]:
    tasks: dict[str, Callable[[], Any]] = {
        name: lambda make=make, settings=settings: _hashes(make(), settings)
        for name, make, settings in _exported()
    }
    for name, policy in _TRAINED.items():
        tasks[f"training {name}"] = lambda name=name, policy=policy: _losses(name, policy)
    return {name: task for name, task in tasks.items() if only in name}


def _computed(only: str) -> dict[str, Any]:
    results = {}
    for name, task in tqdm.tqdm(_tasks(only).items()):
        keras.backend.clear_session()
        try:
            results[name] = task()
        except Exception as error:  # what is refused, and how, is frozen too
            results[name] = f"{type(error).__name__}: {error}"
    return results


def _difference(before: Any, after: Any) -> str:
    """In words."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return f"was {before}, is {after}"
    tensors = before["tensors"].keys() | after["tensors"].keys()
    others = [t for t in sorted(tensors) if before["tensors"].get(t) != after["tensors"].get(t)]
    file = "the same file" if before["file"] == after["file"] else "another file"
    return f"{file}; other codes in {', '.join(others) or 'no tensor'}"


def main() -> int:
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
        print(f"{name}: {_difference(before.get(name), results.get(name))}")
    print(f"{len(before)} results compared, {len(off)} differ")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
