import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.export.deployed import deployed_model
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations.graph import simulate
from sat_tf.export.operations.linear import Linear
from sat_tf.export.tflite.tensors import Storage
from sat_tf.export.verify import TrainedModel
from sat_tf.graph.network import Network
from sat_tf.qat.layout import inner_layer
from tests.export import zoo
from tests.export.zoo import images_for


@functools.cache
def _calibrated(policy, precision):
    del precision  # in which layers are made
    keras.utils.set_random_seed(2)
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(image)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    y = keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    y = keras.layers.Conv2D(8, 1)(keras.layers.ReLU()(keras.layers.BatchNormalization()(y)))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Add()([x, y]))
    model = keras.Model(image, keras.layers.Dense(4, name="classifier")(x))
    model = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(model, images_for(model, 64).astype(np.float32))
    return model, model.get_weights()


def small(policy=None) -> keras.Model:
    """Two convolutions, a residual sum, a mean and a classifier, as they were calibrated."""
    precision = keras.mixed_precision.global_policy().name
    model, weights = _calibrated(policy or sat_tf.BitPolicy.mobile(4), precision)
    model.set_weights(weights)
    return model


def batch_for(model) -> tuple[np.ndarray, np.ndarray]:
    images = images_for(model)
    return images.astype(np.float32), (np.arange(len(images)) % 4).astype(np.int64)


def compiled(model, **options) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, **options)
    return model


def differing(deployed) -> int:
    """Codes that are not those of the file the quantized model is exported to now."""
    images = images_for(deployed.quantized)
    simulated = simulate(deployed_graph(deployed.quantized), images)
    codes, _ = deployed.run(images)
    return sum(np.count_nonzero(codes[name] != simulated[name]) for name in codes)


def test_variables_are_shared_and_integers_are_not_trained():
    model = small()
    deployed = deployed_model(model)
    assert deployed.quantized is model
    assert {id(v) for v in deployed.trainable_weights} == {id(v) for v in model.trainable_weights}
    assert {id(v) for v in model.weights} <= {id(v) for v in deployed.weights}
    assert (deployed.input_shape, deployed.output_shape) == (model.input_shape, model.output_shape)


def test_the_quantized_model_is_not_touched():
    model = small()
    nodes = [len(layer.inbound_nodes) for layer in model.layers]
    before = model.get_weights()
    deployed_model(model)(batch_for(model)[0], training=True)
    assert [len(layer.inbound_nodes) for layer in model.layers] == nodes
    assert all(np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True))


@pytest.mark.thorough
def test_training_changes_the_model_and_the_integers_follow():
    model = small()
    deployed = compiled(deployed_model(model))
    statistics = [w.numpy() for w in model.non_trainable_weights]
    before, (codes, _) = model.get_weights(), deployed.run(images_for(model))
    losses = deployed.fit(*batch_for(model), batch_size=16, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert not all(np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True))
    after, _ = deployed.run(images_for(model))
    assert any(np.any(codes[name] != after[name]) for name in codes)
    assert differing(deployed) == 0
    # Normalization is frozen, and no range is observed.
    for old, variable in zip(statistics, model.non_trainable_weights, strict=True):
        np.testing.assert_array_equal(old, variable.numpy())


class Between(keras.callbacks.Callback):
    """Counts the codes that differ when a step begins, before and after a quick refresh."""

    def __init__(self, deployed) -> None:
        super().__init__()
        self.deployed, self.found = deployed, []

    def on_train_batch_begin(self, batch, logs=None):
        stale = differing(self.deployed)
        self.deployed.refresh_quickly()
        self.found.append((stale, differing(self.deployed)))


@pytest.mark.thorough
def test_a_step_makes_integers_stale_and_a_quick_refresh_makes_them_exact():
    model = small()
    deployed = compiled(deployed_model(model))
    between = Between(deployed)
    deployed.fit(*batch_for(model), batch_size=8, epochs=1, callbacks=[between], verbose=0)
    assert [fresh for _, fresh in between.found] == [0] * 4
    assert between.found[0][0] == 0 < min(stale for stale, _ in between.found[1:])


@pytest.mark.thorough
@pytest.mark.parametrize("use", ["evaluate", "predict", "train_on_batch"])
def test_keras_starts_from_the_integers_of_the_model_as_it_is(use):
    model = small()
    deployed = compiled(deployed_model(model))
    classifier = model.get_layer("quant_classifier").layer
    classifier.bias.assign([9.0, 0.0, 0.0, 0.0])
    images, labels = batch_for(model)
    logits = simulate(deployed_graph(model), images_for(model))["classifier_float"]
    assert np.all(np.argmax(logits, axis=1) == 0)
    if use == "predict":
        np.testing.assert_array_equal(deployed.predict(images, verbose=0), logits)
        return
    options = {} if use == "train_on_batch" else {"verbose": 0}
    seen = getattr(deployed, use)(images, labels, **options)
    loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    assert seen == pytest.approx(float(tf.reduce_mean(loss)), rel=1e-5)


def reference_gradients(model, deployed, images, labels):
    """Gradients of the quantized model in inference, every layer fed with deployed tensors."""
    network = Network(model)
    outputs = {
        node.name: deployed.get_layer(f"deployed_{inner_layer(node.layer).name}").output["real"]
        for node in network
        if node.name != network.input
    }
    fed = keras.Model(deployed.input, outputs)(images)
    fed[network.input] = tf.constant(images)
    variables = model.trainable_weights
    upstream, totals = {}, {}
    for node in reversed(list(network)):
        if node.name == network.input:
            continue
        with tf.GradientTape() as tape:
            inputs = [tf.identity(fed[name]) for name in node.inputs]
            tape.watch(inputs)
            output = dataclasses.replace(node, arguments={}).call(node.layer, inputs)
        if node.name == network.output:
            with tf.GradientTape() as loss_tape:
                logits = tf.identity(fed[node.name])
                loss_tape.watch(logits)
                loss = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
                loss = tf.reduce_mean(loss)
            upstream[node.name] = loss_tape.gradient(loss, logits)
        gradients = tape.gradient(output, [inputs, variables], upstream[node.name])
        for name, gradient in zip(node.inputs, gradients[0], strict=True):
            upstream[name] = upstream.get(name, 0.0) + gradient
        for variable, gradient in zip(variables, gradients[1], strict=True):
            if gradient is not None:
                totals[variable.name] = gradient
    return totals


@pytest.mark.thorough
def test_gradients_are_those_of_the_quantized_model_at_the_deployed_inputs():
    model = small()
    deployed = deployed_model(model)
    images, labels = batch_for(model)
    with tf.GradientTape() as tape:
        logits = deployed(images, training=True)
        loss = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
        loss = tf.reduce_mean(loss)
    variables = model.trainable_weights
    gradients = tape.gradient(loss, variables)
    expected = reference_gradients(model, deployed, images, labels)
    assert set(expected) == {variable.name for variable in variables}
    for variable, gradient in zip(variables, gradients, strict=True):
        np.testing.assert_allclose(
            gradient, expected[variable.name], rtol=1e-4, atol=1e-6, err_msg=variable.name
        )
        assert np.any(gradient != 0), variable.name


def test_where_all_codes_agree_gradients_are_those_of_quantization_aware_training():
    policy = sat_tf.BitPolicy.mobile(8)
    keras.utils.set_random_seed(0)
    image = keras.Input((4, 4, 3), name="image")
    x = keras.layers.Conv2D(6, 3, activation="relu", use_bias=False)(image)
    x = keras.layers.Conv2D(4, 2, use_bias=False)(x)
    model = keras.Model(image, keras.layers.Flatten()(x))
    model = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(model, images_for(model, 64).astype(np.float32))
    deployed = deployed_model(model)
    images, labels = batch_for(model)
    graph = deployed_graph(model)
    own, _ = TrainedModel(model, graph).run(images_for(model))
    computed, _ = deployed.run(images_for(model))
    hidden = next(name for name in own if name.startswith("conv2d"))
    assert np.array_equal(own[hidden], computed[hidden])

    def gradients_of(net):
        with tf.GradientTape() as tape:
            # Linear, so that the logits, which Keras does not round, make no difference.
            loss = tf.reduce_sum(net(images, training=False) * tf.one_hot(labels, 4))
        return tape.gradient(loss, model.trainable_weights)

    for one, two in zip(gradients_of(deployed), gradients_of(model), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5 * np.max(np.abs(two)))


@pytest.mark.thorough
def test_the_file_of_a_deployed_model_is_that_of_its_quantized_one_and_no_code_differs(tmp_path):
    model = small()
    deployed = deployed_model(model)
    first = sat_tf.export_tflite(deployed, tmp_path / "deployed.tflite")
    second = sat_tf.export_tflite(model, tmp_path / "quantized.tflite")
    assert first.sha256 == second.sha256
    images, labels = images_for(model, 64), np.arange(64) % 4
    own = sat_tf.verify_tflite(model, tmp_path / "deployed.tflite", images, labels)
    seen = sat_tf.verify_tflite(deployed, tmp_path / "deployed.tflite", images, labels)
    assert own.trained_differing > 0 == seen.trained_differing == seen.codes_differing
    assert {t.name for t in seen.trained} == {t.name for t in seen.tensors}
    assert seen.top1["quantized"] == seen.top1["tflite"]
    assert seen.agreement == 1.0


def test_a_float_head_is_exported_and_verified_as_such(tmp_path):
    deployed = deployed_model(small(), float_head=True)
    sat_tf.export_tflite(deployed, tmp_path / "model.tflite")
    seen = sat_tf.verify_tflite(deployed, tmp_path / "model.tflite", images_for(deployed))
    assert (seen.trained_differing, seen.codes_differing) == (0, 0)
    sat_tf.export_tflite(deployed.quantized, tmp_path / "integer.tflite")
    with pytest.raises(ValueError, match="received a deployed model with float_head=True, expect"):
        sat_tf.verify_tflite(deployed, tmp_path / "integer.tflite", images_for(deployed))


PACKED = sat_tf.BitPolicy.mobile(4, weight_grid="rounded", first_last_weight_bits=None)


def pointwise(model) -> Linear:
    """The 1x1 convolution in the graph of a deployed model."""
    linear = [op for op in model.graph.operations if isinstance(op, Linear)]
    return next(op for op in linear if op.kernel.shape[1:3] == (1, 1) and op.kernel.ndim == 4)


def test_its_kernels_are_packed_as_those_of_the_file_that_is_written_by_default(tmp_path):
    model = small(PACKED)
    deployed, path = deployed_model(model), tmp_path / "model.tflite"
    assert (deployed.pack, pointwise(deployed).storage) == ("auto", Storage.INT4)
    report = sat_tf.export_tflite(model, path)
    assert report.storage[0].pack == "auto"
    assert sat_tf.verify_tflite(deployed, path, images_for(model)).trained_differing == 0


@pytest.mark.parametrize("pack", ["none", "int2"])
def test_it_is_exported_with_the_packing_that_it_has(pack, tmp_path):
    narrow = sat_tf.BitPolicy.mobile(2, weight_grid="rounded", first_last_weight_bits=None)
    deployed, path = deployed_model(small(narrow), pack=pack), tmp_path / "model.tflite"
    assert sat_tf.export_tflite(deployed, path).storage[0].pack == pack
    found = sat_tf.verify_tflite(deployed, path, images_for(deployed))
    assert (found.codes_differing, found.trained_differing) == (0, 0)
    other = deployed_model(deployed.quantized, pack="auto")
    with pytest.raises(ValueError, match=r"pack='auto', expected one like the file; call depl"):
        sat_tf.verify_tflite(other, path, images_for(deployed))


def test_weights_may_move_in_and_out_of_what_4_bits_hold():
    """On the rounded grid, a γ below 0 makes 8 of the lowest code, which INT4 does not hold."""
    layers = [*zoo.block(zoo.convolution(8)), *zoo.block(zoo.convolution(8, 1)), *zoo.head()]
    model = zoo.Specimen(lambda: zoo.chain((8, 8, 3), *layers), "", PACKED).quantized()
    behind = [layer.layer for layer in model.layers if hasattr(layer, "layer")]
    gamma = [x for x in behind if isinstance(x, keras.layers.BatchNormalization)][1].gamma
    size = np.abs(gamma.numpy())
    gamma.assign(size)
    deployed = deployed_model(model)
    assert pointwise(deployed).storage is Storage.INT4
    for sign, refresh in ((-1, deployed.refresh), (1, deployed.refresh_quickly)):
        gamma.assign(sign * size)
        refresh()
        expected = Storage.INT4 if sign > 0 else Storage.INT8
        assert pointwise(deployed).storage is expected
        assert differing(deployed) == 0


def test_convolutions_of_the_builtin_kernels_cannot_be_deployed():
    with pytest.raises(ValueError, match=r"pack='int4': received \d convolutions(.|\n)*'auto'"):
        deployed_model(small(PACKED), pack="int4")


@pytest.mark.thorough
def test_two_replicas_train_like_one_device(replicas):
    start = small()
    with replicas.scope():
        model = keras.models.clone_model(start)
        model.set_weights(start.get_weights())
        deployed = compiled(deployed_model(model))
    deployed.fit(*batch_for(start), batch_size=16, epochs=2, shuffle=False, verbose=0)
    alone = compiled(deployed_model(start))
    alone.fit(*batch_for(start), batch_size=16, epochs=2, shuffle=False, verbose=0)
    # Sums over the batch are taken in another order, in float32.
    for one, two in zip(start.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    assert differing(deployed) == 0


@pytest.mark.thorough
def test_under_mixed_precision_the_codes_stay_exact():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = small()
        deployed = compiled(deployed_model(model))
        deployed.fit(*batch_for(model), batch_size=16, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert differing(deployed) == 0


def test_a_model_that_cannot_be_exported_cannot_be_deployed():
    model = small(sat_tf.BitPolicy.mobile(4, weight_bits=None))
    with pytest.raises(ValueError, match="weights are not quantized, expected 1 to 8 weight bits"):
        deployed_model(model)


def test_what_it_cannot_do_is_answered_with_the_fix():
    deployed = deployed_model(small())
    with pytest.raises(ValueError, match="received a deployed model, expected the quantized one"):
        deployed_model(deployed)
    with pytest.raises(ValueError, match="steps_per_execution=4, expected 1"):
        compiled(deployed, steps_per_execution=4)
    with pytest.raises(NotImplementedError, match="received a deployed model to save or copy"):
        keras.models.clone_model(deployed)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("weight", ["kernel", "bias"])
def test_a_diverged_weight_is_an_error_when_refreshed(weight):
    model = small()
    deployed = deployed_model(model)
    variable = getattr(model.get_layer("quant_classifier").layer, weight)
    variable.assign(np.nan * variable)
    for refresh in (deployed.refresh, deployed.refresh_quickly):
        with pytest.raises(ValueError, match="classifier"):
            refresh()


def test_other_operations_than_before_are_an_error_that_names_them():
    model = small()
    deployed = deployed_model(model)
    add = next(layer for layer in model.layers if isinstance(inner_layer(layer), keras.layers.Add))
    add.output_variables["clipping_level"].assign(1e5)
    with pytest.raises(ValueError, match=r"other operations than before \(.*_coarse.*\), expected"):
        deployed.refresh()


def test_a_deployed_view_is_no_model_to_quantize_or_explain():
    deployed = deployed_model(small())
    policy = sat_tf.BitPolicy.mobile(4)
    for use in (sat_tf.quantize_model, sat_tf.explain):
        with pytest.raises(ValueError, match=r"deployed view .* pass its attribute `quantized`"):
            use(deployed, policy)
