"""A causal network that takes one frame at a time: what its file keeps, step by step.

A network of causal convolutions learns sequences in float. The form that takes one step, with its
buffers as states, gets the weights, is quantized and exported; LiteRT runs its file step by step,
and its last answer counts. The rows go to those of `transformers.py`, which has the columns.

    python benchmarks/streaming.py
"""

import pathlib
import statistics
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import sequence_networks
import tensorflow as tf
import tf_keras as keras
import transformers
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter
from rows import read_csv, write_csv
from turns import seconds_by_turns

import sat_tf

_CALIBRATED, _ROUNDS = 16, 400
_STATES = {f"newest_{number}": f"past_{number}" for number in range(len(sequence_networks.REACHES))}


def unrolled(model: Any, sequences: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The last answers of a streaming model, and all that it was fed: frames and states."""
    states = [np.zeros((len(sequences), *shape[1:]), np.float32) for shape in model.input_shape[1:]]
    fed: list[list[np.ndarray]] = []
    answers = np.zeros(0)
    for step in range(sequences.shape[1]):
        fed.append([sequences[:, step : step + 1], *states])
        answers, *states = (out.numpy() for out in model(fed[-1], training=False))
    return answers.reshape(len(sequences), -1), [
        np.concatenate(parts) for parts in zip(*fed, strict=True)
    ]


class File:
    """A file with states, run by LiteRT on one thread."""

    def __init__(self, content: bytes, states: Mapping[str, str]) -> None:
        self._interpreter = Interpreter(model_content=content, num_threads=1)
        self._interpreter.allocate_tensors()
        self._takes = {end["name"]: end for end in self._interpreter.get_input_details()}
        gives = {end["name"]: end["index"] for end in self._interpreter.get_output_details()}
        self._pairs = [(gives[out], self._takes[into]) for out, into in states.items()]
        (self._answer,) = set(gives.values()) - {out for out, _ in self._pairs}
        self.invoke = self._interpreter.invoke

    def last_answer(self, sequence: np.ndarray) -> np.ndarray:
        """The answer at the last step of a sequence, from states of real 0."""
        frame = self._takes["frame"]
        if frame["dtype"] == np.int8:
            scale, zero_point = frame["quantization"]
            sequence = np.clip(np.rint(sequence / scale) + zero_point, -128, 127)
        for _, end in self._pairs:
            zero = np.full(end["shape"], end["quantization"][1], end["dtype"])
            self._interpreter.set_tensor(end["index"], zero)
        for step in sequence.astype(frame["dtype"]):
            self._interpreter.set_tensor(frame["index"], step[np.newaxis, np.newaxis])
            self.invoke()
            for index, end in self._pairs:
                self._interpreter.set_tensor(end["index"], self._interpreter.get_tensor(index))
        return self._interpreter.get_tensor(self._answer).ravel()


def _float_model(examples: sequence_networks.Examples) -> keras.Model:
    """The trained network, in the form that takes one step."""
    keras.utils.set_random_seed(0)
    model, stream = sequence_networks.causal(keras), sequence_networks.streaming(keras)
    schedule = keras.optimizers.schedules.CosineDecay(2e-3, 15 * len(examples.train) // 64)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(schedule, weight_decay=0.05), loss)
    labels = examples.train_targets[:, np.newaxis]
    model.fit(examples.train, labels, batch_size=64, epochs=15, verbose=0)
    stream.set_weights(model.get_weights())
    return stream


def _top1(answers: np.ndarray, examples: sequence_networks.Examples) -> str:
    return f"{100.0 * float(np.mean(answers.argmax(axis=-1) == examples.test_targets)):.2f}"


def main(argv: list[str]) -> None:
    """Measures each width, and adds its row."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    output = flags.FLAGS.output
    examples = sequence_networks.chirps()
    model = _float_model(examples)
    of_float = _top1(unrolled(model, examples.test)[0], examples)
    content = bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    _, fed = unrolled(model, examples.train[:_CALIBRATED])
    for width in ("w8a8", "w4a8", "w4a4"):
        weight_bits, activation_bits, _ = transformers.WIDTHS[width]
        policy = sat_tf.BitPolicy.mobile(
            activation_bits, weight_bits=weight_bits, input_type="int8", states=_STATES
        )
        quantized = sat_tf.quantize_model(model, policy)
        sat_tf.calibrate(quantized, fed, num_images=len(fed[0]), progress=False)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "stream.tflite"
            sat_tf.export_tflite(quantized, path, snap_biases=True)
            certificate = sat_tf.verify_tflite(quantized, path, examples.test[0][:, np.newaxis])
            integers = path.read_bytes()
        file = File(integers, _STATES)
        answers = np.stack([file.last_answer(sequence) for sequence in examples.test])
        float_file = Interpreter(model_content=content, num_threads=1)
        float_file.allocate_tensors()
        calls = {"float": float_file.invoke, "integers": file.invoke}
        seconds = seconds_by_turns(calls, range(_ROUNDS), warm_up=10)
        pairs = zip(seconds["integers"], seconds["float"], strict=True)
        low, middle, high = statistics.quantiles([own / other for own, other in pairs], n=4)
        steps = certificate.sequence.runtimes["xnnpack"]
        facts: dict[str, Any] = {
            "network": "streaming convolutions",
            "trained in": "tf_keras",
            "width": width,
            "way": "calibrated",
            "parameters": model.count_params(),
            "float": of_float,
            "score": _top1(answers, examples),
            "codes differing": certificate.codes_differing + steps.codes_differing,
            "codes": certificate.codes_compared + steps.codes_compared,
            "differing from Keras, %": f"{100.0 * certificate.trained_differing:.2f}",
            "bytes": len(integers),
            "times the float file": f"{len(integers) / len(content):.3f}",
            "latency, times float": f"{middle:.2f}",
            "latency, quartiles": f"{low:.2f} to {high:.2f}",
        }
        rows = [*read_csv(output), dict.fromkeys(transformers.COLUMNS, "") | facts]
        write_csv(rows, output)
        print(*rows[-1].values(), sep=" | ", flush=True)


if __name__ == "__main__":
    app.run(main)
