import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.loading.load import load_model
from sat_tf.loading.trust import UntrustedModelError

L = keras.layers


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_functions_that_the_user_calls_are_left_float(name, tmp_path):
    image = keras.Input((8, 8, 3), name="image")
    x = L.Conv2D(4, 3, use_bias=False, name="conv")(image)
    x = L.ReLU(name="relu")(L.BatchNormalization(name="norm")(x))
    x = tf.debugging.check_numerics(x, "numbers")
    x = L.GlobalAveragePooling2D(name="pool")(L.Conv2D(4, 3, name="second")(x))
    model = keras.Model(image, L.Dense(2, name="head")(x))
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, unsupported="float"))
    (operation,) = [layer for layer in quantized.layers if _function_of(layer)]
    assert _function_of(operation) == "debugging.check_numerics"
    quantized.save(tmp_path / name)
    with pytest.raises(UntrustedModelError, match=r"TensorFlow's function 'debugging.check_num"):
        load_model(tmp_path / name)
    loaded = load_model(tmp_path / name, safe_mode=False)
    images = tf.random.stateless_uniform((2, 8, 8, 3), (0, 1))
    assert bool(tf.reduce_all(loaded(images) == quantized(images)))
    # The loaded model can be rewritten like any other.
    assert sat_tf.requantize(loaded, sat_tf.BitPolicy.mobile(4, unsupported="float"))


def _function_of(layer):
    return getattr(getattr(layer, "layer", layer), "function", None)
