"""Every quantizer that a policy names is trained, saved and requantized."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.layer_kinds import kernel_name
from sat_tf.qat.adaptive_bits import AdaptiveBits
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer, weight_quantizer
from tests import methods
from tests.conftest import mirrored
from tests.export.proofs import proved

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
L = keras.layers
FORMATS = {"keras": "model.keras", "h5": "model.h5", "saved_model": "model"}
METHODS = {"sat": {}, **methods.METHODS}


def _float_model(normalized=True, function="swish", ceiling=6.0, mix=True, decay=0.0):
    """Layers of each kind of tensor; without normalization, replicas see what one device sees."""
    norm = L.BatchNormalization if normalized else (lambda: L.Activation("linear"))
    regularizer = keras.regularizers.L2(decay) if decay else None
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.ReLU(ceiling, name="stem_relu")(norm()(L.Conv2D(4, 3, name="stem")(image)))
    branch = norm()(L.DepthwiseConv2D(3, padding="same", name="depthwise")(tensor))
    branch = L.Activation(function, name=function)(branch)
    branch = L.Conv2D(4, 1, name="pointwise", kernel_regularizer=regularizer)(branch)
    tensor = L.Add(name="add")([tensor, branch])
    tensor = L.Conv2D(5, 3, activation="relu", name="mix")(tensor) if mix else tensor
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
    history = model.fit(*data, **options).history
    assert np.isfinite([*history.values()]).all()
    return history


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.thorough) for name in METHODS]
)
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
        return _fit(model, data)["loss"], {v.name: v.numpy() for v in model.trainable_variables}


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


WAYS = {"run_eagerly": True, "jit_compile": True, "steps_per_execution": 2}


@pytest.mark.parametrize("way", [*WAYS, 1, 2])
def test_every_way_to_run_a_step_and_replicas_give_the_same_training(method, alone, way, data):
    losses, variables = alone
    # XLA computes what quantizers have in float32 in another order, and near a tie that decides
    # a code.
    room = 2e-2 if way == "jit_compile" else 1e-5
    with _double_precision():
        with contextlib.nullcontext() if way in WAYS else mirrored(way).scope():
            model = _quantized(method, normalized=False)
        if way in WAYS:
            model.compile(model.optimizer, model.loss, **{way: WAYS[way]})
        np.testing.assert_allclose(_fit(model, data)["loss"], losses, rtol=room)
    least = 0.0 if way in WAYS else 1e-6
    for (name, value), other in zip(variables.items(), model.trainable_variables, strict=True):
        if way not in WAYS or "clipping_level" in name:
            np.testing.assert_allclose(other, value, rtol=room, atol=least, err_msg=name)


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


NESTED = BitPolicy.mobile(4, weight_grid="nested")
WIDTHS = (7, 4, 2)


def _adaptive(images=None, *, bits=WIDTHS, policy=NESTED, rate=0.01, **options) -> AdaptiveBits:
    keras.utils.set_random_seed(1)
    float_model = _float_model(function="relu", ceiling=None, mix=False, **options)
    model = sat_tf.quantize_for_bits(float_model, policy, bits=bits)
    if images is not None:
        for width in bits:
            sat_tf.calibrate(model.at_bits(width), images)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])
    return model


def _inner(model, name):
    return inner_layer(model.get_layer(f"quant_{name}"))


def test_widths_share_kernels_and_biases_and_the_upper_bits_of_nested_codes():
    model = _adaptive()
    first, *others = model.members
    for other in others:
        for name in ("stem", "depthwise", "pointwise", "classifier"):
            one, two = _inner(first, name), _inner(other, name)
            assert [id(v) for v in one.variables] == [id(v) for v in two.variables]
        shared = {id(v) for v in first.variables} & {id(v) for v in other.variables}
        assert len(shared) == 8
        own = {v.name.split("/")[-1] for v in other.variables if id(v) not in shared}
        assert own >= {"gamma:0", "beta:0", "moving_mean:0", "clipping_level:0"}
    own = sum(len(member.trainable_variables) - 8 for member in model.members)
    assert len(model.trainable_variables) == 8 + own

    def units(width, name):
        """The integers n of a nested kernel, from its codes 2 n - top."""
        layer = model.at_bits(width).get_layer(f"quant_{name}")
        quantizer = layer.quantize_config.weights
        kernel = getattr(layer.layer, kernel_name(layer.layer))
        codes = quantizer.integer_weights(kernel, layer.kernel_variables).codes
        return (np.asarray(codes) + quantizer.largest_code) // 2

    for name in ("depthwise", "pointwise"):
        most = units(7, name)
        assert 0 <= most.min() < most.max() <= 127
        for width in (4, 2):
            np.testing.assert_array_equal(units(width, name), most >> (7 - width))


def test_a_step_takes_the_sum_of_the_gradients_of_all_widths(data):
    model = _adaptive(data[0], rate=1.0, normalized=False)
    images, labels = data[0][:32], data[1][:32]
    expected, losses = {}, []
    for member in model.members:
        with tf.GradientTape() as tape:
            logits = member(images, training=True)
            of_images = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(of_images)
        losses.append(float(loss))
        variables = member.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            expected[variable.ref()] = expected.get(variable.ref(), 0.0) + gradient.numpy()
    before = {variable.ref(): variable.numpy() for variable in model.trainable_variables}
    logs = model.train_on_batch(images, labels, return_dict=True)
    assert logs["loss"] == pytest.approx(sum(losses), rel=1e-5)
    for width, loss in zip(WIDTHS, losses, strict=True):
        assert logs[f"loss_at_{width}"] == pytest.approx(loss, rel=1e-5)
    assert len(expected) == len(before)
    for reference, old in before.items():
        step = old - reference.deref().numpy()
        if getattr(reference.deref(), "constraint", None) is None:
            np.testing.assert_allclose(step, expected[reference], rtol=2e-4, atol=2e-5)


@pytest.mark.thorough
def test_weight_decay_counts_once(data):
    decay = 0.3
    model = _adaptive(rate=1.0, normalized=False, decay=decay, bits=(4, 2))
    plain = _adaptive(rate=1.0, normalized=False, bits=(4, 2))
    kernel = _inner(plain.members[0], "pointwise").kernel.numpy()
    for each in (model, plain):
        each.train_on_batch(data[0][:32], data[1][:32])
    found, without = (_inner(m.members[0], "pointwise").kernel.numpy() for m in (model, plain))
    np.testing.assert_allclose(without - found, 2 * decay * kernel, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_all_widths_learn_and_are_measured(data):
    model = _adaptive(data[0])
    # The skew of a symmetric range, which is 0, has no gradient.
    trainable = [v for v in model.trainable_variables if "skew" not in v.name or v.numpy()]
    before = [variable.numpy() for variable in trainable]
    history = _fit(model, data, epochs=4)
    assert set(history) == {"loss", *(f"{m}_at_{w}" for m in ("loss", "accuracy") for w in WIDTHS)}
    assert history["loss"][-1] < history["loss"][0]
    moved = sum(not np.array_equal(old, new) for old, new in zip(before, trainable, strict=True))
    assert moved >= len(before) - 1  # a level behind which nothing is clipped may stay
    measured = model.evaluate(*data, verbose=0, return_dict=True)
    for width in WIDTHS:
        logits = model.at_bits(width).predict(data[0], verbose=0)
        right = np.mean(np.argmax(logits, axis=1) == data[1])
        assert measured[f"accuracy_at_{width}"] == pytest.approx(right)
        if width == 7:
            np.testing.assert_array_equal(model.predict(data[0], verbose=0), logits)


@pytest.mark.thorough
def test_every_width_has_a_certified_file(data, tmp_path):
    model = _adaptive(data[0])
    _fit(model, data)
    for width in WIDTHS:
        path = tmp_path / f"{width}.tflite"
        pixels = data[0].astype(np.uint8)
        _, certificate = proved(model.at_bits(width), path, pixels)
        assert certificate.codes_compared > 0


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["keras", "h5", "checkpoint"])
def test_it_is_saved_and_goes_on_after_loading(form, data, tmp_path):
    model = _adaptive(data[0])
    _fit(model, data)
    path = str(tmp_path / f"model.{form}")
    if form == "keras":
        model.save(path)
        loaded = keras.models.load_model(path)
        assert loaded.bits == WIDTHS
    else:
        loaded = _adaptive()
        loaded.optimizer.build(loaded.trainable_variables)
        first, second = (tf.train.Checkpoint(m=m, of=m.optimizer) for m in (model, loaded))
        if form == "h5":
            model.save_weights(path)
            loaded.load_weights(path)
        else:
            first.write(path)
            second.read(path).expect_partial()
    for width in WIDTHS:
        np.testing.assert_array_equal(loaded.at_bits(width)(data[0]), model.at_bits(width)(data[0]))
    kernels = [_inner(member, "stem").kernel for member in loaded.members]
    assert len({id(kernel) for kernel in kernels}) == 1
    if form != "h5":  # which holds no optimizer
        assert _fit(model, data, epochs=1) == _fit(loaded, data, epochs=1)
        np.testing.assert_equal(model.get_weights(), loaded.get_weights())


@pytest.mark.thorough
def test_it_trains_in_mixed_precision(precision, data):
    model = _adaptive(data[0])
    _fit(model, data)
    assert {variable.dtype for variable in model.trainable_variables} == {tf.float32}


@pytest.mark.thorough
def test_replicas_train_like_a_single_device(replicas, data):
    expected = _adaptive(normalized=False)
    with replicas.scope():
        found = _adaptive(normalized=False)
    one, other = _fit(expected, data), _fit(found, data)
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, err_msg=name)
    for old, new in zip(expected.trainable_variables, found.trainable_variables, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5, err_msg=old.name)


def test_float_activations_stay_float():
    model = _adaptive(policy=BitPolicy(activation_bits=None), bits=(4, 2))
    for width in (4, 2):
        quantizers = map(weight_quantizer, model.at_bits(width).layers)
        assert width in {quantizer.num_bits for quantizer in quantizers if quantizer}


class _Scaled(keras.losses.Loss):
    """A loss without a configuration, as users write them."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, y_true, y_pred):
        losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return self.factor * losses


def test_evaluate_gives_what_its_names_say_and_takes_a_loss_of_the_users_own_as_it_is(data):
    model, losses = _adaptive(bits=(4, 2)), []
    values = model.evaluate(*data, verbose=0)
    names = ["loss", "loss_at_4", "accuracy_at_4", "loss_at_2", "accuracy_at_2"]
    assert model.metrics_names == names
    by_name = model.evaluate(*data, verbose=0, return_dict=True)
    assert dict(zip(names, values, strict=True)) == pytest.approx(by_name)
    for factor in (1.0, 100.0):
        model.compile("sgd", _Scaled(factor))
        losses.append(model.evaluate(*data, verbose=0, return_dict=True)["loss_at_2"])
    assert losses[1] == pytest.approx(100.0 * losses[0], rel=1e-5)


@pytest.mark.thorough
def test_compiling_one_width_changes_nothing_for_the_whole(data):
    model, other = _adaptive(bits=(4, 2)), _adaptive(bits=(4, 2))
    other.at_bits(2).compile(loss="mse")
    for each in (model, other):
        each.train_on_batch(data[0][:32], data[1][:32])
    np.testing.assert_equal(model.get_weights(), other.get_weights())
