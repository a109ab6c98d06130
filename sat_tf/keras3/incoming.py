"""The conversion of Keras 3 models and files to tf_keras, with its proof."""

import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sat_tf.files import expect_path
from sat_tf.loading import trust
from sat_tf.loading.load import bounded_weights, load_model, named_by_content
from sat_tf.loading.model_file import open_model_file, read_model_file
from sat_tf.messages import ProblemsError, reason_of, shown, warn

if TYPE_CHECKING:
    import tf_keras as keras

    from sat_tf.keras3.proof import Proof
    from sat_tf.keras3.translator import Translated


def from_keras3(
    model: Any, *, custom_layers: Mapping[str, type] | None = None, safe_mode: bool = True
) -> "keras.Model":
    """Turns a Keras 3 model into the tf_keras (Keras 2) model that TFMOT and sat-tf work on.

    Layers keep their names, settings and weights; nested models stay nested, and layers that are
    called more than once stay one. Operations such as `x + y` or `keras.ops.mean(x, (1, 2))`
    become the layer that tf_keras has for them, else an operation of TensorFlow. Initializers that
    tf_keras does not have are left out, as the weights are there already; random layers get new
    seeds. The model is not compiled.

    The result is proved first: on random input, with values in [-1, 1] and in [0, 255], every
    layer of the tf_keras model, given the input of the Keras 3 layer, gives the same output, and so
    does the whole model; in inference, to 1e-5 of the largest absolute value of each tensor, or to
    the loss by float32 where a layer or the model magnifies rounding. Random numbers, dropout
    and gradients are not compared. Layers that act in training only, and that tf_keras does not
    have, pass their input through, with a warning.

    Args:
        model: a built Functional or Sequential Keras 3 model, whatever its backend; or the path of
            a `.keras` (or HDF5) file that Keras 3 saved. The layers of your own in it must be
            registered with Keras 3 by then.
        custom_layers: for layers of your own, the tf_keras class to build, by the name of the
            Keras 3 class; it is given the settings of `get_config`, and is held to the same proof.
        safe_mode: refuse a file that would run code when it is loaded; False runs it.

    Raises:
        ValueError: something in the model has no counterpart in tf_keras (every such layer is
            named, with the fix), a weight is NaN, or a layer computes something else there (the
            first one is named, with the difference).

    Example:
        >>> import keras
        >>> image = keras.Input((8, 8, 3))
        >>> x = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(image)
        >>> x = keras.ops.mean(x, axis=(1, 2))
        >>> model = keras.Model(image, keras.layers.Dense(2, name="head")(x))
        >>> converted = from_keras3(model)
        >>> type(converted).__module__.split(".")[0], converted.get_layer("head").units
        ('tf_keras', 2)
    """
    return convert(model, custom_layers=custom_layers, safe_mode=safe_mode)[0]


def convert(
    model: Any, *, custom_layers: Mapping[str, type] | None = None, safe_mode: bool = True
) -> tuple["keras.Model", "Proof"]:
    """The model of `from_keras3`, and the result of its proof."""
    if isinstance(model, str | os.PathLike):
        path = expect_path(model)
        loaded = _load(path, safe_mode)
        try:
            return convert(loaded, custom_layers=custom_layers)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    _expect_keras3(model)
    from sat_tf.qat.model_class import warn_of_lost_class

    warn_of_lost_class(
        type(model),
        "its Python code is written for Keras 3",
        "write the class with tf_keras, and train YourClass(model.inputs, model.outputs)",
    )
    from sat_tf.keras3.proof import prove

    translation = translated(model, custom_layers)
    return translation.model, prove(translation, whole=True)


class ReadModel(NamedTuple):
    """A model of tf_keras that was read from a file, and how it was converted."""

    model: "keras.Model"  # Not compiled.
    note: str | None  # A line on the conversion of a Keras 3 model; None for one of tf_keras.


def read_model(path: str | os.PathLike[str], *, safe_mode: bool = True) -> ReadModel:
    """Reads a model of Keras 2, SavedModels too, or one of Keras 3, which is converted."""
    file = read_model_file(path)
    if file is None or not file.is_keras3:
        return ReadModel(load_model(path, safe_mode=safe_mode), None)
    model, proof = convert(path, safe_mode=safe_mode)
    return ReadModel(
        model,
        f"{path}: saved by Keras {file.version}; converted to tf_keras with sat_tf.from_keras3, "
        f"outputs differ by at most {proof.difference:.1g} of their largest value.",
    )


def translated(
    model: Any, custom_layers: Mapping[str, type] | None = None, *, is_twin: bool = False
) -> "Translated":
    """A Keras 3 model in both Kerases, before its proof."""
    from sat_tf.keras3.translator import Translator

    translator = Translator(_expect_layers(custom_layers), calls_others=is_twin)
    translation = translator.translate(model)
    if translator.without and not is_twin:
        warn(
            f"model {model.name!r}: {', '.join(translator.without)}: tf_keras does not have these "
            "layers, which act in training only: it trains the model without them."
        )
    return translation


def _expect_layers(layers: Mapping[str, type] | None) -> Mapping[str, type]:
    import tf_keras as keras

    layers = {} if layers is None else layers
    if not isinstance(layers, Mapping):
        raise ValueError(f"custom_layers: received {type(layers).__name__}, expected a dictionary.")
    problems = [
        f"{name}: received {cls!r}, expected a class derived from tf_keras.layers.Layer; "
        "write the layer with `import tf_keras as keras`."
        for name, cls in layers.items()
        if not (isinstance(cls, type) and issubclass(cls, keras.layers.Layer))
    ]
    if problems:
        raise ProblemsError("custom_layers", problems)
    return layers


def _expect_keras3(model: Any) -> None:
    import keras as keras3
    import tf_keras as keras

    if isinstance(model, keras3.Model):
        return
    class_name = f"{type(model).__module__}.{type(model).__qualname__}"
    no_need = "; a tf_keras model needs no conversion" if isinstance(model, keras.Model) else ""
    raise ValueError(
        f"received {class_name}, expected a Keras 3 model, or the path of a .keras file that "
        f"Keras 3 saved{no_need}."
    )


def _load(path: pathlib.Path, safe_mode: bool) -> Any:
    if not path.exists():
        raise ValueError(f"{path}: not found; expected a .keras file that Keras 3 saved.")
    try:
        file = open_model_file(path)
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}; expected a .keras file that Keras 3 saved; save the model with "
            "model.save('model.keras')."
        ) from error
    if not file.is_keras3:
        raise ValueError(
            f"{path}: received a file that Keras {file.version or '2'} saved, expected one of "
            "Keras 3; it needs no conversion: load it with tf_keras.models.load_model(path)."
        )
    import keras as keras3

    if safe_mode:
        try:
            trust.check(file.config, keras3)
        except ValueError as error:
            raise type(error)(shown(f"{path}: {error}")) from error
    try:
        with named_by_content(file) as name, bounded_weights(file.weight_bytes):
            return keras3.saving.load_model(name, compile=False, safe_mode=safe_mode)
    except Exception as error:  # layers of any author may raise errors of any class
        raise ValueError(
            f"{path}: received a file that Keras {keras3.__version__} does not load "
            f"({reason_of(error)}), expected one that it does; load it with the Keras that saved "
            "it, and pass the model."
        ) from error
