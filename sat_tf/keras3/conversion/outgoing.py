"""From a quantized tf_keras model to a Keras 3 inference model with the effective weights."""

from typing import TYPE_CHECKING

import tf_keras as keras

from sat_tf.graph.network import check_model
from sat_tf.keras3.conversion.calls import calls_of
from sat_tf.messages import list_problems, warn
from sat_tf.qat.wrapper import QuantizedLayer

if TYPE_CHECKING:
    import keras as keras3


def to_keras3(model: keras.Model, *, exact: bool = False) -> "keras3.Model":
    """Turns a quantized model into a Keras 3 model that infers, with nothing left to quantize.

    Linear layers become plain Keras 3 layers with the effective weights. The layer in front of a
    quantizer keeps the name of the float model, `conv`, and what rounds that of the quantized
    model, `quant_conv`. Observers of ranges are left out, and so is what only training needs.
    Nothing in it is trainable. Slashes in names, which Keras 3 refuses, become `_`.

    The model has layers of Keras's own only. What Keras has no layer for, such as a quantizer, is
    made of `keras.ops` operations with constants,

        q = scale · floor((min(max(x, low), high) - low) / scale + lowest_code + 0.5),

    and a layer behind them that changes nothing has its name. Saved to `.keras`, it is loaded
    wherever Keras 3 is, without sat-tf. With `exact`, it has layers of sat-tf's own instead, which
    run on any backend too, and a file of it needs `import sat_tf`.

    The result is compared first, on 4 images of random pixels, layer by layer and as a whole.
    Layers agree to 1e-5 of each tensor's largest value, and more than one code in a thousand of a
    layer that differs, or one that is not the next, is an error. Where a value is nearly halfway
    between two codes, a last bit decides, and layers behind read another code. Such codes of the
    whole model are counted, and a warning says how many there are and how far the outputs differ.

    With `exact`, the TensorFlow backend and a CPU, outputs are those of `model` bit for bit. (In
    graphs, as in `predict`, TensorFlow may fuse a float function with the layer in front of it, in
    either model, and then change its last bit.) Without it, Keras's own normalizations multiply in
    another order than TensorFlow's fused kernel, and graphs multiply by 1 / scale where the formula
    divides, the scale being a constant. Other backends and XLA (`jit_compile`) round sums
    differently in either form.

    Args:
        model: a model quantized by sat-tf.
        exact: outputs bit for bit, for a file that needs sat-tf.

    Returns:
        A Keras 3 model with the inputs and outputs of `model`.

    Raises:
        ValueError: the model is not quantized, has layers that Keras 3 does not have (all are
            named), or a layer computes something else there. Without `exact`, a recurrent layer
            has a function that Keras 3 does not have.

    Example:
        >>> image = keras.Input((8, 8, 3))
        >>> x = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(image)
        >>> x = keras.layers.Dense(2, name="head")(keras.layers.Flatten()(x))
        >>> from sat_tf import quantize_model
        >>> exported = to_keras3(quantize_model(keras.Model(image, x)))
        >>> [layer.name for layer in exported.layers if layer.name.endswith(("conv", "head"))]
        ['conv', 'quant_conv', 'head']
    """
    check_model(model)
    calls = list(calls_of(model))
    if not any(isinstance(call.layer, QuantizedLayer) for call in calls):
        raise ValueError(
            f"model {model.name!r}: received a model without quantized layers, expected one "
            "quantized by sat-tf; call sat_tf.quantize_model(model, policy) first."
        )
    from sat_tf.keras3.conversion import inference_model as pieces
    from sat_tf.keras3.conversion.assembly import build
    from sat_tf.keras3.conversion.inference_model import prove

    found = {call.layer.name: pieces.problem_of(call.layer, exact=exact) for call in calls}
    problems = [f"{name}: {problem}." for name, problem in found.items() if problem]
    if problems:
        raise ValueError(list_problems(f"model {model.name!r}", problems))
    exported, made = build(
        model, calls, lambda layer, names: pieces.pieces_of(layer, names, exact=exact)
    )
    exported.trainable = False
    proof = prove(model, exported, calls, made)
    if proof.codes_differing:
        fix = "call it" if exact else "pass exact=True, for a file that needs sat-tf, and call it"
        warn(
            f"model {model.name!r}: {proof.codes_differing} of {proof.codes} codes are others in "
            f"Keras 3, which rounds sums differently, and its outputs differ by up to "
            f"{proof.difference:.2g} of their largest value; for equal ones, {fix} with "
            "KERAS_BACKEND=tensorflow on a CPU.",
        )
    return exported
