"""Several bit widths of one network, which share kernels and biases."""

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
from tests.export.proofs import proved

L = keras.layers
NESTED = BitPolicy.mobile(4, weight_grid="nested")
WIDTHS = (7, 4, 2)


def _float_model(normalized=True, decay=0.0):
    norm = L.BatchNormalization if normalized else (lambda: L.Activation("linear"))
    regularizer = keras.regularizers.L2(decay) if decay else None
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.ReLU(name="stem_relu")(norm()(L.Conv2D(4, 3, name="stem")(image)))
    branch = norm()(L.DepthwiseConv2D(3, padding="same", name="depthwise")(tensor))
    branch = L.ReLU(name="relu")(branch)
    branch = L.Conv2D(4, 1, name="pointwise", kernel_regularizer=regularizer)(branch)
    tensor = L.Add(name="add")([tensor, branch])
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, L.Dense(3, name="classifier")(tensor), name="small")


def _adaptive(images=None, *, bits=WIDTHS, policy=NESTED, rate=0.01, **options) -> AdaptiveBits:
    keras.utils.set_random_seed(1)
    model = sat_tf.quantize_for_bits(_float_model(**options), policy, bits=bits)
    if images is not None:
        for width in bits:
            sat_tf.calibrate(model.at_bits(width), images)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def two_widths():
    """A model that no test trains."""
    return _adaptive(bits=(4, 2))


@pytest.fixture(scope="module")
def three_widths():
    """A model that no test trains."""
    return _adaptive()


def _fit(model, data, epochs=2):
    return model.fit(*data, batch_size=32, epochs=epochs, shuffle=False, verbose=0).history


def _inner(model, name):
    return inner_layer(model.get_layer(f"quant_{name}"))


def test_kernels_and_biases_are_the_same_variables_and_the_rest_is_not(three_widths):
    model = three_widths
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
    assert all(np.isfinite(values).all() for values in history.values())
    assert history["loss"][-1] < history["loss"][0]
    moved = sum(not np.array_equal(old, new) for old, new in zip(before, trainable, strict=True))
    assert moved >= len(before) - 1  # a level behind which nothing is clipped may stay
    measured = model.evaluate(*data, verbose=0, return_dict=True)
    for width in WIDTHS:
        logits = model.at_bits(width).predict(data[0], verbose=0)
        right = np.mean(np.argmax(logits, axis=1) == data[1])
        assert measured[f"accuracy_at_{width}"] == pytest.approx(right)
    np.testing.assert_array_equal(
        model.predict(data[0], verbose=0), model.at_bits(7).predict(data[0], verbose=0)
    )


def _units(member, name):
    """The integers n of a nested kernel, from its codes 2 n - top."""
    layer = member.get_layer(f"quant_{name}")
    assert isinstance(layer, QuantizedLayer)
    quantizer = layer.quantize_config.weights
    kernel = getattr(layer.layer, kernel_name(layer.layer))
    codes = quantizer.integer_weights(kernel, layer.kernel_variables).codes
    return (np.asarray(codes) + quantizer.largest_code) // 2


def test_nested_codes_of_fewer_bits_are_the_upper_bits_of_those_at_7(three_widths):
    model = three_widths
    for name in ("depthwise", "pointwise"):
        most = _units(model.at_bits(7), name)
        assert 0 <= most.min() < most.max() <= 127
        for width in (4, 2):
            np.testing.assert_array_equal(_units(model.at_bits(width), name), most >> (7 - width))


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
    history = _fit(model, data)
    assert np.isfinite(history["loss"]).all()
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


def test_evaluate_gives_what_its_names_say(data):
    model = _adaptive(bits=(4, 2))
    values = model.evaluate(*data, verbose=0)
    names = ["loss", "loss_at_4", "accuracy_at_4", "loss_at_2", "accuracy_at_2"]
    assert model.metrics_names == names
    assert dict(zip(names, values, strict=True)) == pytest.approx(
        model.evaluate(*data, verbose=0, return_dict=True)
    )


@pytest.mark.thorough
def test_compiling_one_width_changes_nothing_for_the_whole(data):
    model, other = _adaptive(bits=(4, 2)), _adaptive(bits=(4, 2))
    other.at_bits(2).compile(loss="mse")
    for each in (model, other):
        each.train_on_batch(data[0][:32], data[1][:32])
    np.testing.assert_equal(model.get_weights(), other.get_weights())


class _Scaled(keras.losses.Loss):
    """A loss without a configuration, as users write them."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, y_true, y_pred):
        losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return self.factor * losses


def test_a_loss_of_the_users_own_is_taken_as_it_is(two_widths, data):
    losses = []
    for factor in (1.0, 100.0):
        two_widths.compile("sgd", _Scaled(factor))
        losses.append(two_widths.evaluate(*data, verbose=0, return_dict=True)["loss_at_2"])
    assert losses[1] == pytest.approx(100.0 * losses[0], rel=1e-5)
