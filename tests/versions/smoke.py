"""The tasks of every supported combination of versions, done in about a minute.

It runs in an environment that has the package installed and neither pytest nor the rest of the
tests, from any folder:

    python tests/versions/smoke.py

One line for each check; the status is 1 if one failed. The last line is JSON, with the versions
found and the outcomes, for `noxfile.py`.
"""

import importlib.metadata
import importlib.util
import json
import pathlib
import platform
import subprocess
import sys
import tempfile
import traceback
import warnings

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras
from PIL import Image

import sat_tf
from sat_tf.core import dorefa, pact

_REFERENCE = pathlib.Path(__file__).parents[1] / "reference.py"

PACKAGES = ("tensorflow", "tf_keras", "keras", "numpy", "ai-edge-litert")
# float32 against float64, of values of at most 1 in magnitude.
_TOLERANCE = 5e-7
# Nearer to a tie than this, float32 may round either way, as in tests/core.
_TIE = 1e-4
_BITS = (2, 3, 4, 8)


# It is a module by itself: the package `tests` needs more than is installed here.
_SPEC = importlib.util.spec_from_file_location("reference", _REFERENCE)
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)


def weights_agree_with_the_reference() -> str:
    """Effective weights and codes of two grids, and the largest deviation."""
    kernel = np.random.default_rng(0).normal(0, 0.5, (3, 3, 8, 16)).astype(np.float32)
    worst = 0.0
    for grid in ("dorefa", "narrow"):
        for bits in _BITS:
            position = reference.weight_position(kernel, bits, grid)
            sure = reference.distance_from_tie(position, grid) > _TIE
            expected = reference.quantize_weights(kernel, bits, grid)
            found = dorefa.quantize_weights(tf.constant(kernel), bits, grid).numpy()
            worst = max(worst, float(np.max(np.abs(found - expected)[sure])))
            codes = dorefa.weight_codes(tf.constant(kernel), bits, grid).numpy()
            _expect_equal(codes[sure], reference.weight_codes(kernel, bits, grid)[sure])
    return _expect_small(worst)


def activations_and_gradients_agree_with_the_reference() -> str:
    """CG-PACT forward and backward, eagerly and in a graph."""
    random = np.random.default_rng(1)
    x = random.normal(0, 2, 4000).astype(np.float32)
    upstream = random.normal(0, 1, x.shape).astype(np.float32)
    level = tf.constant(1.5)

    def both(bits: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            inputs = [tf.constant(x), level]
            tape.watch(inputs)
            q = pact.quantize_activation(*inputs, bits)
        return q, tape.gradient(q, inputs, tf.constant(upstream))

    worst = 0.0
    for run in (both, tf.function(both)):
        for bits in _BITS:
            q, (dx, d_level) = run(bits)
            position = reference.activation_position(x, 1.5, bits)
            sure = np.abs(position - np.floor(position) - 0.5) > _TIE
            expected = reference.quantize_activation(x, 1.5, bits)
            worst = max(worst, float(np.max(np.abs(q.numpy() - expected)[sure])) / 1.5)
            expected_dx, expected_level = reference.activation_gradients(x, 1.5, bits, upstream)
            _expect_equal(dx.numpy(), expected_dx.astype(np.float32))
            scale = float(np.sum(np.abs(upstream)))
            worst = max(worst, abs(float(d_level) - expected_level) / scale)
    return _expect_small(worst)


def a_trained_network_is_saved_exported_and_proved() -> str:
    """Twenty steps, twice; the loaded model's outputs and the file's codes are the same."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(2)
    images = random.integers(0, 256, (64, 16, 16, 3), dtype=np.uint8)
    labels = images.mean((1, 2)).argmax(1)
    said = []
    for bits in (4, 2):
        policy = sat_tf.BitPolicy(weight_bits=bits, activation_bits=bits)
        q = sat_tf.quantize_model(_network(), policy)
        sat_tf.calibrate(q, images.astype(np.float32))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        q.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss)
        losses = q.fit(images.astype(np.float32), labels, 16, epochs=5, verbose=0).history["loss"]
        if not np.all(np.isfinite(losses)):
            raise ValueError(f"losses: received {losses}, expected finite ones.")
        with tempfile.TemporaryDirectory() as folder:
            q.save(f"{folder}/q.keras")
            loaded = keras.models.load_model(f"{folder}/q.keras")
            batch = images.astype(np.float32)
            _expect_equal(loaded.predict(batch, verbose=0), q.predict(batch, verbose=0))
        said.append(f"{_expect_proved(loaded, images):,} codes at {bits} bits")
    return f"0 of {' and of '.join(said)} differ"


def a_keras_3_model_comes_over() -> str:
    """Its outputs are those of Keras 3, in itself and after quantization to 8 bits and export."""
    keras3.utils.set_random_seed(0)
    layers = keras3.layers
    stem = layers.Conv2D(8, 3, padding="same", use_bias=False), layers.BatchNormalization()
    last = layers.ReLU(), layers.GlobalAveragePooling2D(), layers.Dense(3)
    image = layers.Input((16, 16, 3)), layers.Rescaling(1 / 255)
    model = keras3.Sequential([*image, *stem, *last])
    images = np.random.default_rng(3).integers(0, 256, (64, 16, 16, 3), dtype=np.uint8)
    batch = images.astype(np.float32)
    # Quantized as what it is, trained, saved, loaded, exported and proved.
    q3 = sat_tf.calibrate(sat_tf.quantize_model(model, 4), batch)
    q3.compile("sgd", keras3.losses.SparseCategoricalCrossentropy(from_logits=True))
    q3.fit(batch, np.arange(len(batch)) % 3, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        q3.save(f"{folder}/q.keras")
        _expect_proved(keras3.saving.load_model(f"{folder}/q.keras"), images)
    converted = sat_tf.from_keras3(model)
    difference = float(np.max(np.abs(converted(batch).numpy() - np.asarray(model(batch)))))
    q = sat_tf.quantize_model(converted, sat_tf.BitPolicy(weight_bits=8, activation_bits=8))
    sat_tf.calibrate(q, batch)
    _expect_proved(q, images)
    return _expect_small(difference, 1e-5)


def pictures_in_a_folder_make_a_certified_file() -> str:
    """A first hour: a saved model and photographs in, a file and its certificate out."""
    draw = np.random.default_rng(4)
    with tempfile.TemporaryDirectory() as folder:
        _network().save(f"{folder}/model.keras")
        for name in ("cats", "dogs", "owls"):
            photos = pathlib.Path(folder, "photos", name)
            photos.mkdir(parents=True)
            for number in range(24):
                pixels = draw.integers(0, 256, (20, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(photos / f"{number}.png")
        # The network is not trained, so that no range of its inputs shows in its answers.
        words = ("--images", "photos", "--bits", "4", "--input_range", "0,255", "--out", "app")
        _command(folder, "quantize", "model.keras", *words)
        _command(folder, "verify", "app/model.tflite", "--images", "photos", "--out", "proof")
        proof = json.loads(pathlib.Path(folder, "proof", "certificate.json").read_text())
        _expect_written(folder, "app")
    differing = proof["runtimes"]["xnnpack"]["codes_differing"]
    if differing:
        raise ValueError(f"{differing} codes differ, expected 0.")
    return "0 codes differ"


def commands_find_their_files() -> str:
    """`sat-tf train` from an empty folder, with a shipped configuration."""
    with tempfile.TemporaryDirectory() as folder:
        _command(folder, "train", "--config", _CONFIG, "--out", "run", *_SHORT)
        _expect_written(folder, "run")
    return "with a shipped configuration"


_CONFIG = "configs/digits/mobilenet_v2_w4a4.yaml"
_SHORT = [
    *("--set=data.options.image_size=16", "--set=stages.float.epochs=1"),
    *("--set=stages.float.warmup_epochs=0", "--set=stages.quantized.epochs=1"),
    "--set=stages.quantized.warmup_epochs=0",
]


def _expect_written(folder: str, run: str) -> None:
    written = ("model.tflite", "certificate.json", "certificate.html", "report.html")
    missing = [name for name in written if not pathlib.Path(folder, run, name).is_file()]
    if missing:
        raise ValueError(f"{run}: received no {missing}, expected them.")


def _command(folder: str, *words: str) -> str:
    """Returns what a command prints."""
    command = [sys.executable, "-P", "-m", "sat_tf", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"sat-tf {words[0]}: status {done.returncode}, {done.stderr[-500:]}")
    return done.stdout


CHECKS = (
    weights_agree_with_the_reference,
    activations_and_gradients_agree_with_the_reference,
    a_trained_network_is_saved_exported_and_proved,
    a_keras_3_model_comes_over,
    pictures_in_a_folder_make_a_certified_file,
    commands_find_their_files,
)


def _network() -> keras.Model:
    """Each kind of layer that has quantizers of its own: a residual sum, a depthwise kernel."""
    layers = keras.layers
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(8, 1, use_bias=False)(y))
    x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(3)(x))


def _expect_equal(received: np.ndarray, expected: np.ndarray) -> None:
    differing = int(np.count_nonzero(np.asarray(received) != np.asarray(expected)))
    if differing:
        raise ValueError(f"{differing} of {np.size(expected)} values differ, expected none.")


def _expect_proved(model: keras.Model | keras3.Model, images: np.ndarray) -> int:
    """Returns how many codes of a model's file were compared; none differs."""
    with tempfile.TemporaryDirectory() as folder:
        sat_tf.export_tflite(model, f"{folder}/q.tflite")
        certificate = sat_tf.verify_tflite(model, f"{folder}/q.tflite", images[:16])
    if certificate.codes_differing:
        raise ValueError(f"{certificate.codes_differing} codes differ, expected 0.")
    return certificate.codes_compared


def _expect_small(deviation: float, limit: float = _TOLERANCE) -> str:
    if not deviation <= limit:
        raise ValueError(f"deviation {deviation:.1e}, expected at most {limit:.1e}.")
    return f"within {deviation:.1e}"


def main() -> None:
    """Runs every check, whatever the others do."""
    versions = {"python": platform.python_version()}
    versions["system"] = f"{platform.system()} {platform.machine()}"
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    # The networks are new, and calibrated before they are trained.
    warnings.filterwarnings("ignore", message="calibrate: the statistics")
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    outcomes: dict[str, str] = {}
    failed: list[str] = []
    for check in CHECKS:
        name = check.__name__.replace("_", " ")
        try:
            outcomes[name] = check()
        except Exception as error:
            traceback.print_exc()
            outcomes[name] = " ".join(f"{type(error).__name__}: {error}".split())
            failed.append(name)
        print(f"{'FAILED' if name in failed else 'passed'}  {name}: {outcomes[name]}", flush=True)
    print(json.dumps({"versions": versions, "outcomes": outcomes, "failed": failed}))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
