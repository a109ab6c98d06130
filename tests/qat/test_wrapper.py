import copy
import threading

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.core import pact
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.observers import RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from tests import reference
from tests.qat import float_models

L = keras.layers


def _draw(shape=(2, 6, 6, 3), seed=0):
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def _wrapped(layer, weights=None, output=None, **options):
    return QuantizedLayer(layer, PlacedConfig(weights=weights, output=output), **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: L.Conv2D(4, 3, bias_initializer="ones"),
        lambda: L.DepthwiseConv2D(3, depth_multiplier=2),
        lambda: L.Dense(4, bias_initializer="ones"),
    ],
)
def test_a_linear_layer_computes_with_its_effective_kernel(make):
    quantizer = DorefaQuantizer(num_bits=3, rescale="constant", fan_out=12)
    wrapped = _wrapped(make(), quantizer)
    x = _draw()
    found = wrapped(x).numpy()
    layer = wrapped.layer
    latent = layer.get_weights()[0]
    effective = wrapped.effective_kernel().numpy()
    quantized = reference.quantize_weights(latent, 3, "dorefa")
    expected = quantized * reference.rescale_factor(quantized, 12)
    np.testing.assert_allclose(effective, expected, rtol=1e-5)
    twin = make()
    twin.build(x.shape)
    twin.set_weights([effective, *layer.get_weights()[1:]])
    np.testing.assert_allclose(found, twin(x).numpy(), rtol=1e-5, atol=1e-5)
    # The kernel is the latent one again.
    assert layer.weights[0] is layer.trainable_weights[0]
    np.testing.assert_array_equal(layer.get_weights()[0], latent)


def test_a_quantizer_takes_the_place_of_a_rectifier_inside_a_layer():
    wrapped = _wrapped(L.Conv2D(4, 3, activation="relu"), None, PactQuantizer(num_bits=2))
    x = _draw()
    plain = L.Conv2D(4, 3)
    plain.build(x.shape)
    found = wrapped(x)
    plain.set_weights(wrapped.layer.get_weights())
    level = wrapped.output_variables["clipping_level"]
    np.testing.assert_array_equal(found, pact.quantize_activation(plain(x), level, 2))
    assert wrapped.layer.activation is keras.activations.relu


def test_a_quantizer_takes_the_place_of_a_whole_rectifier():
    wrapped = _wrapped(L.ReLU(6.0, name="relu"), None, PactQuantizer(num_bits=3, ceiling=6.0))
    x = _draw()
    np.testing.assert_array_equal(wrapped(x), pact.quantize_activation(x, 6.0, 3))


def test_a_stream_quantizer_stands_behind_its_layer():
    wrapped = _wrapped(L.Add(), None, StreamQuantizer(num_bits=8, initial_clipping_level=3.0))
    x, y = _draw(), _draw(seed=1)
    np.testing.assert_array_equal(wrapped([x, y]), pact.quantize_stream(x + y, 3.0, 8))


def test_an_observer_looks_at_logits_in_front_of_the_softmax():
    wrapped = _wrapped(L.Dense(4, activation="softmax"), None, RangeObserver())
    x = _draw((8, 3))
    found = wrapped(x, training=True).numpy()
    np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-6)
    logits = x @ wrapped.layer.kernel.numpy()
    assert float(wrapped.output_variables["highest"]) == pytest.approx(logits.max(), rel=1e-5)
    assert float(wrapped.output_variables["lowest"]) == pytest.approx(logits.min(), rel=1e-5)


def test_what_enters_the_quantizer_can_be_asked_for():
    x = _draw()
    for layer, output, expected in [
        (L.ReLU(), PactQuantizer(num_bits=2), x),
        (L.Activation("relu"), PactQuantizer(num_bits=2), x),
        (L.Add(), StreamQuantizer(num_bits=2), None),
        (L.Flatten(), None, x.reshape(2, -1)),
    ]:
        inputs = [x, x] if isinstance(layer, L.Add) else x
        wrapped = _wrapped(layer, None, output)
        wrapped(inputs)
        found = np.asarray(wrapped.before_quantization(inputs))
        np.testing.assert_array_equal(found, 2 * x if expected is None else expected)


def test_the_gradient_reaches_the_latent_kernel_and_the_clipping_level():
    wrapped = _wrapped(
        L.Dense(4, activation="relu"),
        DorefaQuantizer(num_bits=2),
        PactQuantizer(num_bits=2, initial_clipping_level=0.5),
    )
    x = _draw((8, 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(wrapped(x)))
    names = [variable.name.split("/")[-1] for variable in wrapped.trainable_variables]
    assert sorted(names) == ["bias:0", "clipping_level:0", "kernel:0"]
    for gradient in tape.gradient(loss, wrapped.trainable_variables):
        assert np.abs(gradient).max() > 0


def test_a_layer_that_fails_is_put_back():
    wrapped = _wrapped(
        L.Dense(4, activation="relu"), DorefaQuantizer(num_bits=2), PactQuantizer(num_bits=2)
    )
    wrapped(_draw((8, 3)))
    kernel = wrapped.layer.kernel
    with pytest.raises(ValueError, match="incompatible"):
        wrapped(_draw((8, 5)))
    assert wrapped.layer.kernel is kernel
    assert wrapped.layer.activation is keras.activations.relu


@pytest.mark.thorough
def test_threads_do_not_see_each_others_kernels():
    model = sat_tf.quantize_model(float_models.build("without_normalization"), BitPolicy.mobile(2))
    images = float_models.images(16)
    expected = model(images).numpy()
    kernels = {layer.name: layer.layer.weights for layer in model.layers[1:]}
    wrong = []

    def serve():
        for _ in range(20):
            try:
                if not np.array_equal(model(images), expected):
                    wrong.append("another output")
            except Exception as error:  # noqa: BLE001, RUF100 -- told below, out of the thread
                wrong.append(repr(error))

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for layer in model.layers[1:]:
        assert [id(v) for v in layer.layer.weights] == [id(v) for v in kernels[layer.name]]
    assert isinstance(model.get_layer("quant_a").layer.kernel, tf.Variable)


def test_frozen_layers_neither_train_nor_observe():
    wrapped = _wrapped(L.Dense(4), DorefaQuantizer(num_bits=2), RangeObserver())
    x = _draw((8, 3))
    wrapped(x)
    wrapped.trainable = False
    assert not wrapped.trainable_variables
    wrapped(x, training=True)
    assert float(wrapped.output_variables["observations"]) == 0.0
    wrapped.trainable = True
    wrapped(x, training=True)
    assert float(wrapped.output_variables["observations"]) == 1.0


def test_a_wrapper_can_be_copied():
    wrapped = _wrapped(L.Dense(4), DorefaQuantizer(num_bits=2), StreamQuantizer(num_bits=8))
    x = _draw((8, 3))
    expected = wrapped(x).numpy()
    twin = copy.deepcopy(wrapped)
    wrapped.layer.kernel.assign(tf.zeros([3, 4]))
    np.testing.assert_array_equal(twin(x), expected)


def test_settings_are_those_of_the_constructor():
    wrapped = _wrapped(
        L.Conv2D(4, 3, name="a"), DorefaQuantizer(num_bits=3), StreamQuantizer(num_bits=8)
    )
    assert wrapped.name == "quant_a"
    again = QuantizedLayer.from_config(wrapped.get_config())
    assert again.get_config() == wrapped.get_config()
    assert again.quantize_config == wrapped.quantize_config
    assert _wrapped(L.Flatten(), name="other").name == "other"


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_layers_have_quantizers_in_float32(dtype):
    wrapped = _wrapped(
        L.Dense(4, activation="relu", dtype=dtype),
        DorefaQuantizer(num_bits=4, rescale="constant", fan_out=4),
        PactQuantizer(num_bits=4),
    )
    x = _draw((8, 3))
    found = wrapped(x)
    assert found.dtype == dtype.removeprefix("mixed_")
    assert {variable.dtype for variable in wrapped.variables} == {tf.float32}
    effective = wrapped.effective_kernel()
    assert effective.dtype == tf.float32
    half = tf.cast(x, found.dtype) @ tf.cast(effective, found.dtype)
    np.testing.assert_array_equal(found, pact.quantize_activation(half, 8.0, 4))


def test_the_wrapped_layers_own_losses_count_once():
    layer = L.Dense(
        4,
        kernel_regularizer=keras.regularizers.L2(0.1),
        activity_regularizer=keras.regularizers.L2(0.1),
    )
    wrapped = _wrapped(layer, DorefaQuantizer(num_bits=2))
    wrapped(_draw((8, 3)))
    assert len(wrapped.losses) == 2
