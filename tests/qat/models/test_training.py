import collections
import gc
import operator
import pathlib
import weakref

import keras as keras3  # noqa: TID251 -- both Kerases keep them
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from tensorflow.python.framework import ops

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer, graphs_go_with
from tests.qat import float_models
from tests.qat.float_models import L, model_of
from tests.qat.models import nested_models


def _levels(model):
    return {v.name: float(v.numpy()) for v in model.variables if "clipping_level" in v.name}


def _labels(count):
    return np.random.default_rng(3).integers(0, 3, count)


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _compiled(name="dropout", **options):
    model = sat_tf.quantize_model(float_models.build(name), BitPolicy.mobile(4))
    model.compile(keras.optimizers.SGD(0.002, momentum=0.9), LOSS, **options)
    return model


def _fit(model, epochs=2, count=32):
    options = {"batch_size": 16, "epochs": epochs, "shuffle": False, "verbose": 0}
    losses = model.fit(float_models.images(count), _labels(count), **options).history["loss"]
    assert np.isfinite(losses).all()


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_quantization_aware_training_recovers_what_rounding_lost(
    bits, digits, digits_model, correct
):
    model = sat_tf.quantize_model(digits_model, BitPolicy.mobile(bits))
    sat_tf.calibrate(model, digits.train_images)
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True), LOSS)
    images = digits.train_images.astype(np.float32)
    model.fit(images, digits.train_labels, batch_size=64, epochs=4, verbose=0)
    # Seven of 359 images at 4 bits; at 2 bits four epochs are not enough for more.
    assert correct(model) >= correct(digits_model) - (0.02 if bits == 4 else 0.06)


@pytest.mark.thorough
@pytest.mark.parametrize("replicas", [2], indirect=True)
def test_a_model_on_two_replicas_is_calibrated_saved_and_requantized(replicas, tmp_path):
    with replicas.scope():
        model = _compiled()
    images = float_models.images(64)
    sat_tf.calibrate(model, images)
    alone = _compiled()
    sat_tf.calibrate(alone, images)
    assert _levels(model) == pytest.approx(_levels(alone), rel=1e-5)
    _fit(model)
    observed = model.get_layer("quant_classifier").output_variables
    assert float(observed["observations"].read_value()) == 1 + 2 * 2  # both replicas count alike
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images), model(images))
    with replicas.scope():
        fewer = sat_tf.requantize(model, BitPolicy.mobile(2))
    assert np.isfinite(fewer(images)).all()


def test_a_frozen_model_does_not_change_in_training():
    model = _compiled("plain")
    model.trainable = False
    head = L.Dense(5, name="new_head")
    transfer = model_of(model, head)
    transfer.compile("sgd", LOSS)
    before, head_before = model.get_weights(), head.get_weights()
    _fit(transfer)
    np.testing.assert_equal(before, model.get_weights())
    assert not np.array_equal(head_before[0], head.get_weights()[0])
    assert len(transfer.trainable_variables) == 2


@pytest.mark.thorough
def test_clipping_levels_stay_positive_under_any_gradient():
    # Targets far below what rectified tensors can reach pull every level down at once.
    levels = {"initial_clipping_level": 0.05, "initial_classifier_clipping_level": 0.05}
    policy = BitPolicy.mobile(4, weight_range="layer", **levels)
    model = sat_tf.quantize_model(float_models.build("rectified_logits"), policy)
    model.compile(keras.optimizers.SGD(1e3), lambda _, logits: tf.reduce_sum(logits))
    model.fit(float_models.images(16), _labels(16), batch_size=16, verbose=0)
    levels = _levels(model).values()
    assert all(level >= np.float32(1e-3) for level in levels)
    assert min(levels) == pytest.approx(1e-3)


@pytest.mark.thorough
def test_the_logits_range_follows_training():
    model = _compiled("plain")
    _fit(model, epochs=1)
    observed = model.get_layer("quant_classifier").output_variables
    assert float(observed["observations"]) == 2.0
    assert float(observed["lowest"]) < 0.0 < float(observed["highest"])
    before = float(observed["highest"])
    model.evaluate(float_models.images(16), _labels(16), verbose=0)
    model.predict(float_models.images(16), verbose=0)
    assert float(observed["observations"]) == 2.0
    assert float(observed["highest"]) == before


@pytest.mark.thorough
def test_dynamic_image_sizes_train():
    model = _compiled("any_image_size")
    for size in (8, 11):
        images = float_models.images(16, size)
        model.fit(images, _labels(16), batch_size=16, verbose=0)
        assert np.isfinite(model(images)).all()


def test_a_loss_of_the_quantized_model_trains_it_and_does_not_reach_the_file(tmp_path):
    values, code = np.ones((64, 8), np.float32), L.Dense(4, name="code", kernel_regularizer="l2")
    model = model_of(code, L.Dense(3, name="classifier"), shape=(8,), name="net")
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, input_type="int8"))
    quantized.add_loss(tf.reduce_mean(quantized.get_layer("quant_code").output ** 2))
    sat_tf.calibrate(quantized, values, progress=False)
    quantized(values)
    assert len(quantized.losses) == 2  # with that of the regularizer
    sat_tf.export_tflite(quantized, tmp_path / "net.tflite")
    with pytest.raises(ValueError, match="a loss of its own"):
        sat_tf.requantize(quantized, 4)


class Penalty(L.Layer):
    """A layer of a user that adds a loss when it is called."""

    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(inputs**2))
        return inputs


@pytest.mark.parametrize(
    ("library", "layer"),
    [
        *(
            (library, layer)
            for library in (keras, keras3)
            for layer in (
                library.layers.Dense(4, activation="relu", activity_regularizer="l2"),
                library.layers.Dense(4, activation="tanh", activity_regularizer="l2"),
                library.layers.ReLU(activity_regularizer="l2"),
                library.layers.BatchNormalization(activity_regularizer="l2"),
            )
        ),
        (keras, L.Dense(4, activity_regularizer="l2")),
        (keras, L.Activation("tanh", activity_regularizer="l2")),
        (keras, L.ActivityRegularization(0.1)),
        (keras, Penalty()),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_losses_of_layers_are_kept(library, layer):
    library.utils.set_random_seed(5)
    read, dense = library.Input((8,)), library.layers.Dense
    model = library.Model(read, dense(3, name="end")(layer(dense(4, name="start")(read))))
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float", input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    values = np.random.default_rng(5).normal(size=(64, 8)).astype(np.float32)
    sat_tf.calibrate(quantized, values, batch_normalization=False, progress=False)
    model(values), quantized(values)
    (expected,), (found,) = model.losses, quantized.losses
    assert float(found) == pytest.approx(float(expected), rel=0.05)


_HOST = ("PyFunc", "EagerPyFunc", "Send", "Recv", "_Send", "_Recv", "Print", "PrintV2", "Where")


def _data(count, batch_size):
    data = tf.data.Dataset.from_tensor_slices((float_models.images(count), _labels(count)))
    return data.batch(batch_size)


def _operations(graph):
    """All operations of a graph, and of the functions that it calls."""
    definition = graph.as_graph_def()
    functions = [function.node_def for function in definition.library.function]
    return [node for nodes in (definition.node, *functions) for node in nodes]


def _step_graph(make):
    return make().get_concrete_function(iter(_data(8, 4))).graph


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"jit_compile": True}], ids=["plain", "xla"])
def test_fifty_steps_with_a_partial_batch_are_traced_like_one(options):
    model = _compiled("mobile_block", **options)
    data = _data(49 * 4 + 2, 4)
    assert len(data) == 50
    model.fit(data.take(1), verbose=0)
    first = model.train_function.experimental_get_tracing_count()
    model.fit(data, verbose=0)
    assert model.train_function.experimental_get_tracing_count() == first
    model.evaluate(data, verbose=0)
    assert model.test_function.experimental_get_tracing_count() == 1


def test_nothing_in_a_step_is_in_double_precision_or_runs_on_the_host():
    quantized, plain = _compiled("mobile_block"), float_models.build("mobile_block")
    plain.compile("sgd", LOSS)
    for kind in ("train", "test"):
        make = operator.attrgetter(f"make_{kind}_function")
        ours, floats = (_operations(_step_graph(make(model))) for model in (quantized, plain))
        # Only the warning of impossible images, in a branch of the first batches, runs in Python.
        assert [node.op for node in ours if node.op in _HOST] == ["PyFunc"] * (kind == "train")
        top = [node.op for node in _step_graph(make(quantized)).as_graph_def().node]
        assert not {*top} & {*_HOST}
        double = tf.float64.as_datatype_enum
        of_ours, of_floats = (
            collections.Counter(
                node.op for node in nodes if double in [v.type for v in node.attr.values()]
            )
            for nodes in (ours, floats)
        )
        assert not of_ours - of_floats


@pytest.mark.thorough
def test_a_compiled_step_stays_on_its_device():
    model = _compiled("mobile_block")
    images, labels = next(iter(_data(4, 4)))

    @tf.function(jit_compile=True)
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = model.compiled_loss(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    model.optimizer.build(model.trainable_variables)
    program = step.experimental_get_compiler_ir(images, labels)(stage="optimized_hlo")
    for forbidden in ("f64[", "infeed(", "outfeed(", "send(", "recv(", "callback"):
        assert forbidden not in program
    assert np.isfinite(step(images, labels))


def test_evaluation_takes_no_branch_on_the_training_flag():
    """The flag is a Python value: each step holds what it needs, and no choice."""
    model = _compiled("mobile_block")
    evaluation = _operations(_step_graph(model.make_test_function))
    kinds = {node.op for node in evaluation}
    assert not kinds & {"QuantizeAndDequantizeV4Grad", "TanhGrad", "FusedBatchNormGradV3"}
    branches = [node for node in evaluation if node.op in ("If", "StatelessIf")]
    # Only for NaN among the weights, a branch for each kernel; and for each range with two ends, as
    # a symmetric one has a grid of its own.
    choices = [v for v in model.trainable_variables if "kernel" in v.name or "skew" in v.name]
    assert len(branches) <= len(choices)


def _trained(name="dropout", **options):
    """A model after a plain `fit`, and the graph of its step."""
    model = sat_tf.quantize_model(float_models.build(name), BitPolicy.mobile(4))
    images = float_models.images(8)
    model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), "mse", **options)
    model.fit(images, np.zeros((8, *model.output_shape[1:])), batch_size=4, verbose=0)
    *_, step = model.train_function._list_all_concrete_functions()
    return model, weakref.ref(step.graph)


def _collect():
    keras.backend.clear_session()
    # A first pass frees a graph, among others, which lets go of more.
    gc.collect()
    gc.collect()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"jit_compile": True}], ids=["plain", "xla"])
def test_the_graph_of_a_step_goes_with_its_model(options):
    model, graph = _trained(**options)
    before = {*ops.gradient_registry.list()}
    assert graph() is not None
    del model
    _collect()
    assert graph() is None
    for _ in range(2):
        model, graph = _trained(**options)
        del model
        _collect()
    after = {*ops.gradient_registry.list()}
    assert not {name for name in after - before if name.startswith("sat_tf")}
    assert len(after) <= len(before)


@pytest.mark.thorough
def test_a_living_model_keeps_its_gradients():
    squared, owner = tf.custom_gradient(lambda x: (x * x, lambda up: up * 7.0)), L.Layer()

    @tf.function
    def function(x):
        graphs_go_with(owner)
        return squared(x)

    x = tf.constant(2.0)
    function(x)
    _collect()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert tape.gradient(y, x) == 7.0


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="asks Linux")
def test_fifty_trainings_take_little_more_memory_than_one():
    sizes = []
    for _ in range(50):
        _trained("mobile_block")
        _collect()
        status = pathlib.Path("/proc/self/status").read_text().splitlines()
        (resident,) = [line.split()[1] for line in status if line.startswith("VmRSS")]
        sizes.append(int(resident) // 1024)
    assert max(sizes) <= sizes[0] + 300, sizes  # MiB


@pytest.fixture(scope="module")
def quantized():
    """The model with two uses of everything, at w4a4, calibrated."""
    keras.utils.set_random_seed(0)
    model = sat_tf.quantize_model(nested_models.shared(), BitPolicy.mobile(4))
    return sat_tf.calibrate(model, float_models.images(64))


@pytest.mark.thorough
def test_a_shared_layer_has_one_latent_weight_and_a_clipping_level_for_each_use(quantized):
    names = [variable.name for variable in quantized.trainable_variables]
    assert len(names) == len(set(names))
    assert sum("conv/kernel" in name for name in names) == 1
    assert sum("norm/gamma" in name for name in names) == 1
    levels = [name.split("/")[0] for name in names if "clipping_level" in name]
    # The rectifiers behind two calls have levels, two activations that were part of one layer, and
    # two calls without any.
    assert {"quant_relu", "quant_relu_2"} <= set(levels)
    assert {"quant_mix_activation", "quant_mix_activation_2"} <= set(levels)
    assert {"quant_plain_output", "quant_plain_call_2_output"} <= set(levels)
    rectifiers = map(quantized.get_layer, ("quant_relu", "quant_relu_2"))
    levels = {float(layer.output_variables["clipping_level"]) for layer in rectifiers}
    assert len(levels) == 2  # calibrated one by one


def test_both_uses_give_the_latent_weight_their_gradients(quantized):
    images = float_models.images()
    kernel = inner_layer(quantized.get_layer("quant_conv")).kernel

    def gradient(stopped):
        """The gradient of the kernel where one use of the convolution is cut off from it."""
        network = Network(quantized)

        def call(node, inputs):
            made = node.call(node.layer, inputs)
            return tf.stop_gradient(made) if node.name in stopped else made

        with tf.GradientTape() as tape:
            made = dict(network.computed({network.input: images}, [network.output], call))
            loss = tf.reduce_sum(made[network.output] ** 2)
        return tape.gradient(loss, kernel)

    both, only_first = gradient([]), gradient(["quant_conv@2"])
    assert np.abs(both - only_first).max() > 1e-3 * np.abs(both).max()
    assert np.abs(only_first).max() > 0.0


@pytest.mark.parametrize(("build", "rescale"), [("shared", None), ("partly_normalized", "stddev")])
def test_a_layer_is_rescaled_unless_every_use_has_a_normalization_behind(build, rescale):
    model = sat_tf.quantize_model(nested_models.MODELS[build](), BitPolicy.mobile(4))
    assert model.get_layer("quant_conv").quantize_config.weights.rescale == rescale


def test_layers_that_share_a_normalization_are_rescaled():
    image = keras.Input((8, 8, 3), name="image")
    norm = L.BatchNormalization(name="norm")
    one = norm(L.Conv2D(4, 3, name="a")(image))
    other = norm(L.Conv2D(4, 3, name="b")(image))
    model = keras.Model(image, L.Flatten(name="flatten")(L.Add(name="add")([one, other])))
    images = float_models.images()
    expected = model(images).numpy()
    policy = BitPolicy(weight_bits=None, activation_bits=None)
    quantized = sat_tf.quantize_model(model, policy)
    for name in ("quant_a", "quant_b"):
        assert quantized.get_layer(name).quantize_config.weights.rescale == "stddev"
    assert np.abs(quantized(images) - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_layer_that_is_first_once_has_the_bits_of_the_first():
    conv = L.Conv2D(3, 3, padding="same", activation="relu", name="conv")
    model = model_of(conv, conv, L.Flatten(name="flatten"), L.Dense(3, name="classifier"))
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(2))
    assert quantized.get_layer("quant_conv").quantize_config.weights.num_bits == 8


@pytest.mark.slow
def test_calibration_of_a_shared_normalization_is_the_mean_over_its_uses():
    policy = BitPolicy(weight_bits=None, activation_bits=None)
    model = sat_tf.quantize_model(nested_models.shared(), policy)
    images, seen = float_models.images(64), []
    sat_tf.calibrate(model, images)

    def call(node, inputs):
        is_norm = "norm" in node.name
        seen.extend([np.mean(inputs[0], axis=(0, 1, 2))] if is_norm else [])
        made = inputs if node.takes_list else inputs[0]
        return node.layer(made, training=True) if is_norm else node.layer(made)

    network = Network(model)
    dict(network.computed({network.input: tf.constant(images)}, call=call))
    mean = inner_layer(sat_tf.calibrate(model, images).get_layer("quant_norm")).moving_mean
    np.testing.assert_allclose(mean, np.mean(seen, axis=0), rtol=1e-4, atol=1e-5)


def test_another_policy_carries_what_every_use_has_learnt(quantized):
    images = float_models.images()
    same = sat_tf.requantize(quantized, BitPolicy.mobile(4))
    np.testing.assert_array_equal(same(images), quantized(images))
    other = sat_tf.requantize(quantized, BitPolicy.mobile(3))
    for layer in other.layers:
        if isinstance(layer, QuantizedLayer) and "clipping_level" in layer.output_variables:
            old = layer.name.replace("3_bits", "4_bits")
            level = quantized.get_layer(old).output_variables["clipping_level"]
            assert float(layer.output_variables["clipping_level"]) == float(level), layer.name


def test_annotations_of_a_shared_layer_hold_for_all_its_calls():
    annotate = tfmot.quantization.keras.quantize_annotate_layer
    stem = annotate(L.Conv2D(4, 3, activation="relu", name="stem"))
    config = sat_tf.configs.LayerConfig(weight_bits=3)
    shared = annotate(L.Conv2D(4, 3, padding="same", activation="relu", name="conv"), config)
    head = annotate(L.Dense(3, name="classifier"))
    model = model_of(stem, shared, shared, L.GlobalAveragePooling2D(), head)
    scheme = sat_tf.SatQuantizeScheme(BitPolicy.mobile(4))
    quantized = tfmot.quantization.keras.quantize_apply(model, scheme=scheme)
    assert quantized.get_layer("quant_conv").quantize_config.weights.num_bits == 3
    assert quantized.get_layer("quant_conv_activation").quantize_config.output.num_bits == 4
