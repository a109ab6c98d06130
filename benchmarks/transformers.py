"""Transformers and recurrent networks in integers: what each way keeps of them, and the files.

Each network of `sequence_networks.py` is trained in float, in either Keras, then quantized by
sat-tf at several widths: calibrated, fitted to the float model without labels, and trained.
TensorFlow's converter, litert-quantizer (where it is installed) and TFMOT stand beside. A score is
that of a file on held-out examples, run by LiteRT: top-1, or the variance that is explained.

    python benchmarks/transformers.py
    python benchmarks/transformers.py --networks=LSTM --widths=w8a8 --ways=calibrated
    KERAS_BACKEND=jax python benchmarks/transformers.py --keras=keras --networks="ViT on glyphs"

Rows that the CSV file has are not made again, and float models are kept in a folder. Latency is
the median of ratios to the float file, with XNNPACK on one thread, by turns in one process.
"""

import importlib
import importlib.util
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import rich.console
import tensorflow_model_optimization as tfmot
import tf_keras
import tool_files
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter
from rows import as_table, read_csv, write_csv
from sequence_networks import NETWORKS, Examples, Network
from turns import seconds_by_turns

import sat_tf
from sat_tf.qat.finetune import finetune

# The bits of weights and activations, and the ways that are measured with them.
WIDTHS: Mapping[str, tuple[int, int, tuple[str, ...]]] = {
    "w8a8": (8, 8, ("calibrated", "converter", "litert-quantizer", "TFMOT")),
    "w4a8": (4, 8, ("calibrated", "reconstructed", "litert-quantizer")),
    "w4a4": (4, 4, ("calibrated", "reconstructed", "trained")),
    "w2a4": (2, 4, ("calibrated", "trained")),
}
_OURS = ("calibrated", "reconstructed", "trained")
WAYS = (*_OURS, "converter", "litert-quantizer", "TFMOT")
_CALIBRATION, _VERIFIED, _ROUNDS = 512, 32, 200
_FLOAT_RATE, _RATE, _TUNING_RATE = 2e-3, 3e-4, 1e-3

_NETWORKS = flags.DEFINE_list("networks", [], "parts of the names of those to measure, or all")
_WIDTHS = flags.DEFINE_list("widths", list(WIDTHS), "weights and activations")
_WAYS = flags.DEFINE_list("ways", list(WAYS), "to quantize")
_KERAS = flags.DEFINE_enum("keras", "tf_keras", ["tf_keras", "keras"], "what trains")
_EPOCHS = flags.DEFINE_integer("epochs", 4, "of training at fewer bits", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 100, "of the fit of a block", lower_bound=1)
_FOLDER = flags.DEFINE_string("folder", "runs/transformers", "for float models")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/transformers.csv", "CSV of the rows")

_KEYS = ("network", "trained in", "width", "way")
COLUMNS = (
    *(*_KEYS, "parameters", "float", "score", "codes differing", "codes"),
    *("differing from Keras, %", "bytes", "times the float file", "latency, times float"),
    *("latency, quartiles", "seconds", "problem"),
)


class Case(NamedTuple):
    """A network with its examples, its float model, and that model's file and score."""

    network: Network
    examples: Examples
    model: Any
    file: bytes
    score: float

    @property
    def sample(self) -> np.ndarray:
        """What is calibrated on."""
        return self.examples.train[:_CALIBRATION]


def _keras() -> Any:
    return importlib.import_module(_KERAS.value)


def _trained_in() -> str:
    return "tf_keras" if _KERAS.value == "tf_keras" else f"Keras 3, {_keras().backend.backend()}"


def _fit(model: Any, case: Network, examples: Examples, epochs: int, rate: float) -> None:
    keras = _keras()
    schedule = keras.optimizers.schedules.CosineDecay(rate, epochs * len(examples.train) // 64)
    of_classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.05 if rate == _FLOAT_RATE else 0.0)
    model.compile(optimizer, "mse" if case.of_values else of_classes)
    model.fit(examples.train, examples.train_targets, batch_size=64, epochs=epochs, verbose=0)


def _score(network: Network, answers: np.ndarray, examples: Examples) -> float:
    """Per cent of the classes that are right, or of the variance of the values."""
    if network.of_values:
        return tool_files.kept(answers, examples.test_targets, of_values=True)
    return 100.0 * float(np.mean(answers.argmax(axis=-1) == examples.test_targets))


def prepared(name: str) -> Case:
    """What is the same for all widths and ways; the float model of an earlier run, if there."""
    network, keras = NETWORKS[name], _keras()
    examples = network.examples()
    path = pathlib.Path(_FOLDER.value, f"{name} in {_trained_in()}.keras")
    if path.is_file():
        model = keras.models.load_model(path, compile=False)
    else:
        keras.utils.set_random_seed(0)
        model = network.build(keras)
        _fit(model, network, examples, network.epochs, _FLOAT_RATE)
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save(path)
    twin = model if keras is tf_keras else sat_tf.from_keras3(model)
    file = tool_files.by_converter(twin, None)
    answers = model.predict(examples.test, batch_size=250, verbose=0)
    return Case(network, examples, model, file, _score(network, answers, examples))


def _run(content: bytes, example: np.ndarray) -> Callable[[], None]:
    """A call that runs a file once, with XNNPACK on one thread."""
    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    (details,) = interpreter.get_input_details()
    interpreter.set_tensor(details["index"], example[np.newaxis].astype(details["dtype"]))
    return interpreter.invoke


def facts_of(content: bytes, case: Case) -> dict[str, Any]:
    """A file's score and size, and its latency beside the float file's."""
    answers = tool_files.answers(content, case.examples.test)
    calls = {name: _run(file, case.sample[0]) for name, file in (("", case.file), ("q", content))}
    seconds = seconds_by_turns(calls, range(_ROUNDS), warm_up=10)
    ratios = [own / of_float for own, of_float in zip(seconds["q"], seconds[""], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "score": f"{_score(case.network, answers, case.examples):.2f}",
        "bytes": len(content),
        "times the float file": f"{len(content) / len(case.file):.3f}",
        "latency, times float": f"{statistics.median(ratios):.2f}",
        "latency, quartiles": f"{low:.2f} to {high:.2f}",
    }


def of_sat(quantized: Any, case: Case) -> dict[str, Any]:
    """What the file of a quantized model is, and its codes that differ from their simulation."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        sat_tf.export_tflite(quantized, path, snap_biases=True)
        some = case.examples.test[:: len(case.examples.test) // _VERIFIED][:_VERIFIED]
        certificate = sat_tf.verify_tflite(quantized, path, some, progress=False)
        return {
            **facts_of(path.read_bytes(), case),
            "codes differing": certificate.codes_differing,
            "codes": certificate.codes_compared,
            "differing from Keras, %": f"{100.0 * certificate.trained_differing:.2f}",
        }


def _train(quantized: Any, case: Case) -> None:
    """Trains on, by the float model and the labels where the package does that."""
    if case.network.of_values or _keras() is not tf_keras:
        _fit(quantized, case.network, case.examples, _EPOCHS.value, _RATE)
        sat_tf.calibrate(quantized, case.sample, clipping_levels=False, progress=False)
        return
    finetune(
        quantized,
        case.model,
        case.examples.train,
        case.examples.train_targets,
        held_out=(case.examples.train[:500], case.examples.train_targets[:500]),
        sample=case.sample,
        epochs=_EPOCHS.value,
        learning_rate=_TUNING_RATE,
    )


def by_tfmot(case: Case) -> bytes:
    """TFMOT's file, of a network that it takes."""
    model = tfmot.quantization.keras.quantize_model(case.model)
    for start in range(0, _CALIBRATION, 64):  # in training mode its quantizers see the ranges
        model(case.sample[start : start + 64].astype(np.float32), training=True)
    return tool_files.by_converter(model, case.sample.astype(np.float32))


def _by_others(way: str, width: str, case: Case) -> bytes:
    if way == "converter":
        return tool_files.by_converter(case.model, case.sample.astype(np.float32))
    if way == "TFMOT":
        return by_tfmot(case)
    names = [layer.name for layer in case.model.layers if layer.weights]
    eights = None if width == "w8a8" else [names[0], names[-1]]
    return tool_files.by_litert(case.file, case.sample.astype(np.float32), eights)


def _rows(name: str, width: str, ways: list[str], case: Case) -> Any:
    """Yields the way and the facts of each file; each way of ours goes on from the one before."""
    weight_bits, activation_bits, _ = WIDTHS[width]
    quantized = None
    for way in ways:
        begun = time.monotonic()
        if way not in _OURS:
            try:
                yield way, facts_of(_by_others(way, width, case), case)
            except Exception as error:  # each tool refuses in its own way
                yield way, {"problem": " ".join(str(error).split())[:160]}
            continue
        if quantized is None:
            fields = {"weight_bits": weight_bits, **case.network.policy}
            policy = sat_tf.BitPolicy.mobile(activation_bits, **fields)
            quantized = sat_tf.quantize_model(case.model, policy)
            sat_tf.calibrate(quantized, case.sample, num_images=_CALIBRATION, progress=False)
        if way == "reconstructed":
            sat_tf.reconstruct(
                quantized, case.model, case.sample, steps=_STEPS.value, progress=False
            )
        if way == "trained":
            _train(quantized, case)
        seconds = time.monotonic() - begun
        yield way, {**of_sat(quantized, case), "seconds": f"{seconds:.0f}"}


def main(argv: list[str]) -> None:
    """Measures what is missing."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    rows: list[dict[str, Any]] = [*read_csv(_OUTPUT.value)]
    done = {tuple(row[key] for key in _KEYS) for row in rows}
    absent = set() if importlib.util.find_spec("litert_quantizer") else {"litert-quantizer"}
    if _KERAS.value != "tf_keras":
        absent |= {"converter", "litert-quantizer", "TFMOT"}  # they get the same twin
    chosen = _NETWORKS.value or list(NETWORKS)
    for name in [name for name in NETWORKS if any(part in name for part in chosen)]:
        case = None
        for width in [width for width in _WIDTHS.value if width in NETWORKS[name].widths]:
            own = (name, _trained_in(), width)
            wanted = [way for way in WIDTHS[width][2] if way in _WAYS.value and way not in absent]
            if done.issuperset((*own, way) for way in wanted):
                continue
            case = case or prepared(name)
            of_float = {"parameters": case.model.count_params(), "float": f"{case.score:.2f}"}
            for way, facts in _rows(name, width, wanted, case):
                if (*own, way) not in done:
                    row = dict.fromkeys(COLUMNS, "") | dict(zip(_KEYS, (*own, way), strict=True))
                    rows.append(row | of_float | facts)
                    write_csv(rows, _OUTPUT.value)
                    print(*rows[-1].values(), sep=" | ", flush=True)
    if rows:
        shown = (*_KEYS, "float", "score", "codes differing", "bytes", "latency, times float")
        rich.console.Console().print(as_table(rows, "Transformers and recurrent networks", shown))


if __name__ == "__main__":
    app.run(main)
