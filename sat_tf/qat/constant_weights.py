"""Effective weights that are made once and then read, while a model only evaluates."""

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import tf_keras as keras

from sat_tf.qat.wrapper import QuantizedLayer

# What Keras traces once and then keeps.
_EVALUATING = ("test_function", "predict_function")
_TRACED_INSIDE = "_sat_tf_traced_with_constant_weights"


@contextlib.contextmanager
def constant_weights(model: keras.Model) -> Iterator[None]:
    """Inside, `evaluate`, `predict` and calls of a quantized model make no effective weights.

    They read those that were made on entry, bit for bit the ones they would have made themselves,
    at the price of one more copy of the kernels in memory from the first entry on:

        with sat_tf.callbacks.constant_weights(model):
            model.evaluate(images, labels)

    The weights must not change inside; training raises an error. A `tf.function` of your own that
    is first called inside goes on reading the copies, which hold NaN outside: it never gives the
    results of old weights.

    Args:
        model: a Keras model with layers quantized by sat-tf in it, at any depth.

    Raises:
        ValueError: the model has no layer quantized by sat-tf.
        RuntimeError: the model is inside of another `constant_weights`, or is trained in this one.

    >>> import numpy as np, tf_keras as keras, sat_tf
    >>> float_model = keras.Sequential([keras.layers.Dense(2, input_shape=(4,))])
    >>> model = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.paper(4))
    >>> images = np.ones((1, 4), np.float32)
    >>> computed = model.predict(images, verbose=0)
    >>> with sat_tf.callbacks.constant_weights(model):
    ...     read = model.predict(images, verbose=0)
    >>> bool(np.all(read == computed))
    True
    """
    copies = ConstantWeights(model)
    if copies.are_read:
        raise RuntimeError(
            f"constant_weights: {model.name!r} has constant weights already; leave the inner one "
            "out."
        )
    with _own_functions(model):
        copies.fill()
        try:
            yield
        finally:
            copies.clear()


class ConstantWeights:
    """Copies of the effective kernels of a model's quantized layers.

    Args:
        model: see `constant_weights`.
    """

    def __init__(self, model: keras.Model) -> None:
        self._layers = _quantized_layers(model)
        if not self._layers:
            raise ValueError(
                f"constant_weights: {model.name!r} has no layer quantized by sat-tf; quantize it "
                "first, by sat_tf.quantize_model."
            )
        self._scope = model.distribute_strategy.scope

    @property
    def are_read(self) -> bool:
        """Whether the layers compute with the copies now."""
        return any(layer.constant_kernel is not None for layer in self._layers)

    def fill(self) -> None:
        """Copies the effective kernels as they are now; the layers read the copies from now on."""
        with self._scope():
            for layer in self._layers:
                layer.copy_effective_kernel()

    def clear(self) -> None:
        """The layers make their effective kernels again; the copies hold NaN."""
        for layer in self._layers:
            layer.forget_copy()


def has_quantized_layers(model: keras.Model) -> bool:
    """Whether there is anything to copy in a model."""
    return bool(_quantized_layers(model))


def _quantized_layers(model: keras.Model) -> list[QuantizedLayer]:
    return [part for part in model.submodules if isinstance(part, QuantizedLayer)]


@contextlib.contextmanager
def _own_functions(model: keras.Model) -> Iterator[None]:
    """What Keras traces inside is kept apart from what it traces outside, and taken up again."""
    compiled = getattr(model, "compiled_loss", None)
    outside = {name: getattr(model, name) for name in _EVALUATING}
    training = model.train_function
    # `compile` makes Keras forget what it has traced.
    nothing: tuple[Any, dict[str, Any]] = (None, {})
    of_compiled, inside = getattr(model, _TRACED_INSIDE, nothing)
    for name in _EVALUATING:
        setattr(model, name, inside.get(name) if of_compiled is compiled else None)
    model.train_function = _refuse_to_train
    try:
        yield
    finally:
        inside = {name: getattr(model, name) for name in _EVALUATING}
        # Past Keras' own __setattr__, which would track it.
        object.__setattr__(model, _TRACED_INSIDE, (getattr(model, "compiled_loss", None), inside))
        for name, function in outside.items():
            setattr(model, name, function)
        model.train_function = training


def _refuse_to_train(*_: Any) -> NoReturn:
    raise RuntimeError(
        "constant_weights: the model is trained inside, where its weights must not change; train "
        "it outside."
    )
