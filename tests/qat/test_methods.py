"""Every quantizer that a policy names is trained, saved and requantized."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from tests import methods

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]
L = keras.layers
FORMATS = {"keras": "model.keras", "h5": "model.h5", "saved_model": "model"}
METHODS = {"sat": {}, **methods.METHODS}


def _float_model(normalized=True):
    """Layers of each kind of tensor; without normalization, replicas see what one device sees."""
    norm = L.BatchNormalization if normalized else (lambda: L.Activation("linear"))
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.ReLU(6.0, name="stem_relu")(norm()(L.Conv2D(4, 3, name="stem")(image)))
    branch = norm()(L.DepthwiseConv2D(3, padding="same", name="depthwise")(tensor))
    branch = L.Activation("swish", name="swish")(branch)
    branch = L.Conv2D(4, 1, name="pointwise")(branch)
    tensor = L.Conv2D(5, 3, activation="relu", name="mix")(L.Add(name="add")([tensor, branch]))
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, L.Dense(3, name="classifier")(tensor), name="small")


def _policy(method, bits=4, **fields):
    return BitPolicy.mobile(bits, **{**METHODS[method], **fields})


def _quantized(method, images=None, bits=4, normalized=True):
    keras.utils.set_random_seed(1)
    model = sat_tf.quantize_model(_float_model(normalized), _policy(method, bits))
    if images is not None:
        sat_tf.calibrate(model, images)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Where nothing is normalized, ten times the rate takes magnitudes of LSQ to their lowest value,
    # and from there the last bit of a sum decides where they go.
    rate = 0.002 if normalized else 0.0002
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss)
    return model


def _fit(model, data, epochs=2):
    options = {"batch_size": 32, "epochs": epochs, "shuffle": False, "verbose": 0}
    losses = model.fit(*data, **options).history["loss"]
    assert np.isfinite(losses).all()
    return losses


@pytest.fixture(scope="module", params=METHODS)
def method(request):
    """A name; pytest runs all tests of one before those of the next."""
    return request.param


@pytest.fixture(scope="module")
def trained(method, data):
    """A model that has learnt, which tests may train on, and what it started from."""
    model = _quantized(method, data[0])
    before = {v.name: v.numpy() for v in model.trainable_variables}
    _fit(model, data, epochs=3)
    return model, before


@contextlib.contextmanager
def _double_precision():
    """Computes layers in float64, where the order of a sum decides no code near a tie."""
    keras.backend.set_floatx("float64")
    try:
        yield
    finally:
        keras.backend.set_floatx("float32")


@pytest.fixture(scope="module")
def alone(method, data):
    """The losses and variables of a training on one device, in which nothing is normalized."""
    with _double_precision():
        model = _quantized(method, normalized=False)
        return _fit(model, data), {v.name: v.numpy() for v in model.trainable_variables}


def test_every_variable_learns(method, trained):
    model, before = trained
    kinds = {name.split("/")[-1] for name in before}
    assert ("magnitude:0" in kinds) == (METHODS[method].get("weight_quantizer") == "lsq")
    assert ("offset:0" in kinds) == (method == "lsq_plus")
    moved = [v.name for v in model.trainable_variables if not np.array_equal(before[v.name], v)]
    # An offset has no gradient if nothing is clipped, nor a skew of a range that is symmetric.
    assert kinds - {"offset:0", "skew:0"} <= {name.split("/")[-1] for name in moved}
    assert {name for name in before if "magnitude" in name or "kernel" in name} <= set(moved)


@pytest.mark.parametrize("form", FORMATS)
def test_it_is_saved_and_goes_on_after_loading_as_if_it_had_never_stopped(
    form, trained, data, tmp_path
):
    model, _ = trained
    model.save(tmp_path / FORMATS[form])
    loaded = keras.models.load_model(tmp_path / FORMATS[form])
    np.testing.assert_array_equal(loaded(data[0]), model(data[0]))
    for one, other in zip(model.layers[1:], loaded.layers[1:], strict=True):
        if isinstance(one, QuantizedLayer):
            assert one.quantize_config == other.quantize_config
        np.testing.assert_equal(one.get_weights(), other.get_weights())
        for old, new in zip(one.weights, other.weights, strict=True):
            lowest, kept = (getattr(v.constraint, "minimum", None) for v in (old, new))
            assert lowest == kept
    if form != "saved_model":  # Keras saves no optimizer there
        for each in (model, loaded):
            _fit(each, data, epochs=1)
        np.testing.assert_equal(model.get_weights(), loaded.get_weights())


def test_it_trains_in_mixed_precision_and_is_loaded_without(method, precision, data, tmp_path):
    model = _quantized(method, data[0])
    before = [v.numpy() for v in model.trainable_variables]
    _fit(model, data)
    floats = {v.dtype for v in model.variables if v.dtype.is_floating}
    assert floats == {tf.float32}
    assert model.output.dtype == precision.removeprefix("mixed_")
    moved = zip(before, model.trainable_variables, strict=True)
    assert any(not np.array_equal(old, new) for old, new in moved)
    model.save(tmp_path / "model.keras")
    keras.mixed_precision.set_global_policy("float32")  # the file says what it needs
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(data[0]), model(data[0]))


def test_replicas_train_like_a_single_device(method, alone, replicas, data):
    losses, variables = alone
    with _double_precision():
        with replicas.scope():
            model = _quantized(method, normalized=False)
        np.testing.assert_allclose(_fit(model, data), losses, rtol=1e-5)
    for (name, value), other in zip(variables.items(), model.trainable_variables, strict=True):
        np.testing.assert_allclose(other, value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [{"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}],
    ids=lambda options: next(iter(options)),
)
def test_every_way_to_run_a_step_gives_the_same_training(method, alone, options, data):
    losses, variables = alone
    # XLA computes what quantizers have in float32 in another order, and near a tie that decides
    # a code.
    room = 2e-2 if "jit_compile" in options else 1e-5
    with _double_precision():
        model = _quantized(method, normalized=False)
        model.compile(model.optimizer, model.loss, **options)
        np.testing.assert_allclose(_fit(model, data), losses, rtol=room)
    for (name, value), other in zip(variables.items(), model.trainable_variables, strict=True):
        if "clipping_level" in name:
            np.testing.assert_allclose(other, value, rtol=room, err_msg=name)


def test_all_that_is_asked_of_a_quantized_model_is_answered(method, trained, data):
    explained = str(sat_tf.explain(_float_model(), _policy(method)))
    for kind, words in (("weight", "weights"), ("activation", "output")):
        name = METHODS[method].get(f"{kind}_quantizer")
        assert not name or f"{words} by {name}: " in explained
        surrogate = METHODS[method].get(f"{kind}_options", {}).get("surrogate")
        assert surrogate is None or surrogate in explained
    rows = {row.name: row for row in sat_tf.audit(trained[0], data).layers}
    assert np.isfinite(rows["pointwise"].effective_variance)
    damage = sat_tf.sensitivity(_float_model(), data, _policy(method), num_images=32)
    assert {row.name for row in damage.layers} >= {"stem", "pointwise", "classifier"}


def test_a_model_can_change_to_dorefa_and_back_with_its_function(method, data):
    model = _quantized(method, data[0], bits=8)
    # The kernel at 8 bits depends on the start; the best one is that of DoReFa's.
    dorefa = sat_tf.requantize(model, BitPolicy.mobile(8))
    back = sat_tf.requantize(dorefa, _policy(method, 8))
    again = sat_tf.requantize(model, _policy(method, 8))
    for name in ("pointwise", "classifier", "depthwise"):
        first, *others = (
            one.get_layer(f"quant_{name}").effective_kernel().numpy()
            for one in (model, again, dorefa, back)
        )
        np.testing.assert_allclose(others[0], first, rtol=1e-6, atol=1e-7)
        # The other quantizer starts from the weights clipped at an end as they were.
        ends = np.abs(first).max(axis=tuple(range(first.ndim - 1)), keepdims=True)
        inside = np.abs(first) < 0.95 * (ends if name != "depthwise" else np.abs(first).max((0, 1)))
        for other in others[1:]:
            close = 0.06 * np.abs(first).max()
            np.testing.assert_allclose(other[inside], first[inside], atol=close)


def test_fewer_bits_keep_what_the_levels_have_become(method, trained, data):
    model, _ = trained
    fewer = sat_tf.requantize(model, _policy(method, 2))
    for one in model.layers:
        if "clipping_level" in getattr(one, "output_variables", {}):
            other = fewer.get_layer(one.name)
            for name, variable in one.output_variables.items():
                np.testing.assert_array_equal(other.output_variables[name], variable)
    fewer.compile(keras.optimizers.SGD(0.002), model.loss)
    _fit(fewer, data)  # stays finite


@pytest.mark.filterwarnings("ignore:calibrate")
def test_one_image_is_enough_to_start_and_a_black_one_changes_no_level(method, data):
    model = _quantized(method, data[0][:1])
    assert np.isfinite(model(data[0][:1])).all()
    levels = [v.numpy() for v in model.trainable_variables if "clipping_level" in v.name]
    assert all(level > 0.0 for level in levels)


def test_gradients_that_are_not_finite_are_found_in_the_variable_they_reach(method, data):
    model = _quantized(method, data[0])
    layer = model.get_layer("quant_pointwise")
    kernel = layer.layer.kernel.numpy()
    kernel[0, 0, 0, 0] = np.nan
    layer.layer.kernel.assign(kernel)
    effective = layer.effective_kernel().numpy()
    assert np.isnan(effective[0, 0, 0, 0])
    assert np.isfinite(effective[..., 1:]).all()
    for name, variable in layer.kernel_variables.items():
        assert np.isfinite(variable.numpy()).all(), name


def test_progressive_bits_come_down_to_those_of_the_policy(method, data):
    model = _quantized(method, data[0], bits=2)
    floor = tf.Variable(8, dtype=tf.int64)
    quantized = [layer for layer in model.layers if isinstance(layer, QuantizedLayer)]
    last = model(data[0]).numpy()
    for layer in quantized:
        layer.keep_bits_above(floor)
    for bits in (8, 5, 2):
        floor.assign(bits)
        codes = np.unique(model.get_layer("quant_mix").effective_kernel())
        assert len(codes) > 4 or bits == 2
    np.testing.assert_allclose(model(data[0]), last, rtol=1e-4, atol=1e-4)
