"""Measures what networks with normalizations lose, on streams that 8 bits hold badly.

    PYTHONPATH=. python benchmarks/normalized_networks.py

Small transformers, mixers and convolutional networks, not trained, read rows of one scale, of
several, and with one channel or token much larger than others: for CPUs, with float32 between
codes, with `int8`, and for Ethos-U, with 16 bits between. Printed are the largest error of a
normalization's output and the error of the network's, root mean square in percent of the float
network's, and how many of 100 answers are its own. Half an hour on two cores.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tf_keras as keras
from absl import app

import sat_tf
from sat_tf.graph.operation_layers import RMSNormalization

L = keras.layers
_PLACES, _WIDTH, _IMAGES, _SEEN = 16, 64, 768, 256
_TARGETS = ("litert", "int8", "ethos-u85")
_Norm = Callable[[], Any]


def _channel(factor: float) -> np.ndarray:
    return np.where(np.arange(_WIDTH) == 3, factor, 1.0)


def _scales(powers: float) -> np.ndarray:
    return 10.0 ** np.random.default_rng(1).uniform(-powers, 0.0, (_IMAGES, _PLACES, 1))


_STREAMS = {
    "one scale": np.ones(1),
    "rows of 0.1 to 1": _scales(1.0),
    "rows of 0.03 to 1": _scales(1.5),
    "a channel of 20": _channel(20.0),
    "a channel of 50": _channel(50.0),
    "a token of 10": np.where(np.arange(_PLACES) == 0, 10.0, 1.0)[:, np.newaxis],
}


def _transformer(norm: _Norm) -> keras.Model:
    x = tokens = keras.Input((_PLACES, _WIDTH))
    for _ in range(2):
        y = norm()(x)
        x = L.Add()([x, L.MultiHeadAttention(4, _WIDTH // 4)(y, y)])
        y = L.Dense(2 * _WIDTH, activation="gelu")(norm()(x))
        x = L.Add()([x, L.Dense(_WIDTH)(y)])
    return keras.Model(tokens, L.Dense(10)(L.GlobalAveragePooling1D()(norm()(x))))


def _mixer(norm: _Norm) -> keras.Model:
    x = tokens = keras.Input((_PLACES, _WIDTH))
    for _ in range(2):
        y = L.Permute((2, 1))(norm()(x))
        y = L.Dense(_PLACES)(L.Dense(32, activation="relu")(y))
        x = L.Add()([x, L.Permute((2, 1))(y)])
        y = L.Dense(2 * _WIDTH, activation="relu")(norm()(x))
        x = L.Add()([x, L.Dense(_WIDTH)(y)])
    return keras.Model(tokens, L.Dense(10)(L.GlobalAveragePooling1D()(norm()(x))))


def _convolutions(norm: _Norm) -> keras.Model:
    tokens = keras.Input((_PLACES, _WIDTH))
    x = L.Reshape((4, 4, _WIDTH))(tokens)
    for _ in range(3):
        y = L.Conv2D(_WIDTH, 3, padding="same", activation="relu")(norm()(x))
        x = L.Add()([x, L.Conv2D(_WIDTH, 1)(y)])
    return keras.Model(tokens, L.Dense(10)(L.GlobalAveragePooling2D()(norm()(x))))


_NETWORKS: dict[str, tuple[Callable[[_Norm], keras.Model], _Norm, tuple[str, ...]]] = {
    "transformer": (_transformer, L.LayerNormalization, tuple(_STREAMS)),
    "transformer, root mean square": (
        _transformer,
        RMSNormalization,
        ("one scale", "rows of 0.1 to 1", "a channel of 50"),
    ),
    "mixer": (
        _mixer,
        L.LayerNormalization,
        ("one scale", "rows of 0.1 to 1", "a channel of 20"),
    ),
    "4 groups": (
        _convolutions,
        lambda: L.GroupNormalization(4),
        ("one scale", "a channel of 20", "a channel of 50"),
    ),
    "16 groups": (_convolutions, lambda: L.GroupNormalization(16), ("a channel of 20",)),
}


def _figures(model: keras.Model, rows: np.ndarray, target: str) -> tuple[float, float, float]:
    policy = sat_tf.BitPolicy.mobile(8, target=target, input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, rows[:_SEEN], progress=False)
    norms = [layer.name for layer in model.layers if "normalization" in layer.name]
    found_layers = {layer.name.removeprefix("quant_"): layer for layer in quantized.layers}
    outputs = [
        ([of[name].output for name in norms], whole)
        for of, whole in (
            ({layer.name: layer for layer in model.layers}, model),
            (found_layers, quantized),
        )
    ]
    wanted, found = (
        keras.Model(whole.input, [*tensors, whole.output]).predict(rows[_SEEN:], verbose=0)
        for tensors, whole in outputs
    )
    errors = [
        100.0 * float(np.linalg.norm(made - real) / np.linalg.norm(real))
        for made, real in zip(found, wanted, strict=True)
    ]
    kept = 100.0 * float(np.mean(found[-1].argmax(-1) == wanted[-1].argmax(-1)))
    return max(errors[:-1]), errors[-1], kept


def main(arguments: list[str]) -> None:
    """Prints the figures of each network on each of its streams."""
    del arguments
    normal = np.random.default_rng(0).normal(size=(_IMAGES, _PLACES, _WIDTH))
    for name, (make, norm, streams) in _NETWORKS.items():
        for stream in streams:
            keras.utils.set_random_seed(1)
            model, rows = make(norm), (normal * _STREAMS[stream]).astype(np.float32)
            figures = (_figures(model, rows, target) for target in _TARGETS)
            listed = "; ".join(f"{e:.1f} {end:.1f} {kept:.1f}" for e, end, kept in figures)
            print(f"{name}, {stream}: {listed}", flush=True)


if __name__ == "__main__":
    app.run(main)
