import copy
import json

import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.operation_layers import TensorFlowOperation
from sat_tf.loading.load import load_model
from sat_tf.loading.tensor_functions import CalledFunction, expect_allowed, trusted_maker
from sat_tf.loading.trust import UntrustedModelError

L = keras.layers
_REFUSED = r"function='io\.write_file': received a function that may do more than compute"


def test_a_layer_calls_no_function_that_only_a_file_names(tmp_path):
    marker = tmp_path / "marker"
    config = {"function": "io.write_file", "arguments": [[str(marker), "x"], {}]}
    layer = {"class_name": "sat_tf>Operation", "config": config}
    with pytest.raises(ValueError, match=_REFUSED):
        TensorFlowOperation(**config)
    with pytest.raises((TypeError, ValueError), match=_REFUSED):
        keras.layers.deserialize(layer)
    with pytest.raises((TypeError, ValueError), match=_REFUSED):
        keras.activations.get(layer)
    assert not marker.exists()


def test_trust_ends_with_its_scope():
    with trusted_maker():
        assert expect_allowed("io.write_file") == "io.write_file"
    with pytest.raises(ValueError, match="expected one of TensorFlow's"), trusted_maker():
        expect_allowed(None)
    with pytest.raises(ValueError, match=_REFUSED):
        expect_allowed("io.write_file")


def test_a_file_does_not_carry_the_mark_of_python_code():
    written = json.loads(json.dumps({"function": CalledFunction("io.write_file")}))
    assert type(copy.deepcopy(CalledFunction("io.write_file"))) is CalledFunction
    with pytest.raises(ValueError, match=_REFUSED):
        expect_allowed(written["function"])


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
