import functools
import warnings
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.graph import network as network_module
from sat_tf.graph import rewrite
from sat_tf.graph.network import Network, check_model
from sat_tf.qat import layout, scheme
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models

L = keras.layers


def _of(outputs, image):
    return Network(keras.Model(image, outputs, name="custom"))


@pytest.fixture
def image():
    return keras.Input((8, 8, 3), name="image")


def test_nodes_come_after_what_they_read_and_edges_are_known_in_both_directions():
    network = Network(float_models.build("mobile_block"))
    seen = set()
    for node in network:
        assert set(node.inputs) <= seen
        seen.add(node.name)
    assert (network.input, network.output) == ("image", "classifier")
    network = Network(float_models.build("mobile_block"))
    assert [node.name for node in network.consumers("project_bn")] == ["expand", "add"]
    assert network["add"].inputs == ("project_bn", "again_bn")
    assert network["add"].takes_list
    assert not network["expand"].takes_list
    assert network["expand"].shape == (8, 8, 4)
    assert network.before("expand") == {"image", "a", "a_bn", "a_relu", "project", "project_bn"}
    assert "expand" in network
    assert "expnd" not in network


def test_tensors_are_computed_in_inference_and_kept_until_they_have_been_read():
    network = Network(float_models.build("mobile_block"))
    images = float_models.images(3)
    made = []
    for name, tensor in network.computed({"image": images}):
        made.append((name, weakref.ref(tensor) if name != "image" else None))
        del tensor
        alive = [one for one, found in made if found is not None and found() is not None]
        assert len(alive) <= 3, alive
    assert [name for name, _ in made] == [node.name for node in network]
    found = dict(network.computed({"image": images}))
    expected = float_models.build("mobile_block")(images)
    np.testing.assert_allclose(found["classifier"], expected, rtol=1e-5, atol=1e-6)
    assert network.last_read_by(network["again"]) == {"expand_relu"}


def test_call_arguments_are_kept_and_a_sequential_model_has_an_input():
    network = Network(float_models.build("frozen_normalization"))
    assert network["a_bn"].arguments == {"training": False}
    network = Network(float_models.sequential_built_later())
    assert network.input == "conv_input"
    assert network["conv"].inputs == ("conv_input",)


def test_a_node_calls_another_layer_as_it_calls_its_own_and_an_operation_is_one(image):
    network = _of(L.Add(name="add")([L.Conv2D(3, 1, name="a")(image), image]), image)
    total = network["add"].call(L.Add(), [np.ones((1, 2)), np.ones((1, 2))])
    assert total.numpy().tolist() == [[2.0, 2.0]]
    lone = _of(L.Average(name="mean")([image]), image)["mean"]
    assert lone.takes_list
    assert not _of(tf.nn.relu(image), image).problems


def test_layers_that_are_read_from_inside_a_larger_model_are_not_seen(image):
    hidden = L.Conv2D(4, 3, name="a")(image)
    keras.Model(image, L.Flatten(name="elsewhere")(hidden))
    assert [node.name for node in _of(hidden, image)] == ["image", "a"]


def test_a_layer_called_twice_has_two_nodes_counted_along_the_arguments(image):
    layer = L.Conv2D(3, 3, padding="same", name="twice")
    network = _of(layer(layer(image)), image)
    assert [node.name for node in network] == ["image", "twice", "twice@2"]
    assert network["twice@2"].inputs == ("twice",)
    assert [call.name for call in network.calls("twice@2")] == ["twice", "twice@2"]
    assert network.is_shared("twice")
    assert not network.is_shared("image")
    assert not network.problems
    layer, relu = L.Conv2D(3, 1, name="twice"), L.ReLU(name="relu")
    # The second summand is as deep as the first, or deeper.
    for second in (relu(image), relu(L.ReLU(name="more")(image))):
        network = _of(L.Add(name="add")([layer(image), layer(second)]), image)
        assert network["add"].inputs == ("twice", "twice@2")


def test_several_inputs_and_outputs_keep_their_order_and_structure(image):
    other = keras.Input((8, 8, 3), name="other")
    total = L.Add(name="add")([image, other])
    model = keras.Model([other, image], {"b": total, "a": [L.Flatten(name="flat")(total), total]})
    network = Network(model)
    assert network.inputs == ("other", "image")
    assert network.outputs == ("flat", "add", "add")
    again = network.assemble({node.name: node.layer.output for node in network})
    assert again.name == model.name
    assert [tensor.name for tensor in again.inputs] == ["other", "image"]
    assert set(again.output) == {"a", "b"}


def test_readers_of_a_layer_are_its_only_ones_if_they_read_nothing_else(image):
    conv, norm = L.Conv2D(3, 1, name="conv"), L.BatchNormalization(name="norm")
    one, other = norm(conv(image)), norm(conv(L.ReLU()(image)))
    network = _of(L.Add(name="sum")([one, other]), image)
    assert {node.name for node in network.only_readers("conv")} == {"norm", "norm@2"}
    assert network.only_readers("sum") == []  # an output
    apart = norm(L.ReLU(name="relu")(image))
    network = _of(L.Add()([norm(conv(image)), apart]), image)
    assert network.only_readers("conv") == []  # the normalization reads another layer, too


def test_the_origin_of_a_tensor_is_in_front_of_what_passes_it_on(image):
    x = L.Flatten(name="flatten")(L.ReLU(name="relu")(L.Conv2D(3, 1, name="conv")(image)))
    network = _of(L.Dense(2, name="end")(x), image)
    moves = {"flatten", "relu"}
    assert network.origin("flatten", lambda node: node.name in moves).name == "conv"
    assert network.origin("end", lambda node: node.name in moves).name == "end"


def test_models_inside_are_read_through(image):
    inner = keras.Sequential([keras.Input((8, 8, 3)), L.ReLU(name="relu")], name="inner")
    network = Network(keras.Model(image, inner(inner(image))), through=True)
    assert [node.name for node in network] == ["image", "inner/relu", "inner@2/relu"]
    assert network["inner@2/relu"].inputs == ("inner/relu",)
    assert network.outputs == ("inner@2/relu",)


def test_a_model_is_read_once(monkeypatch, tmp_path):
    calls, begin = [], Network.__init__

    def made(self, *args, **options):
        calls.append("made")
        begin(self, *args, **options)

    def checked(model):
        calls.append("checked")
        check_model(model)

    def counted(function, *args, **options):
        """How many networks a function makes, and how many models it checks."""
        calls.clear()
        results.append(function(*args, **options))
        return calls.count("made"), calls.count("checked")

    monkeypatch.setattr(Network, "__init__", made)
    for module in (network_module, rewrite, scheme, layout):
        monkeypatch.setattr(module, "check_model", checked)
    # A network is made of the user's model, and of each model that is built from it; so are checks.
    model, path, results = float_models.build("mobile_block"), tmp_path / "model.tflite", []
    images = (8 * np.arange(2 * 8 * 8 * 3).reshape(2, 8, 8, 3) % 256).astype(np.uint8)
    assert counted(sat_tf.explain, model) == (1, 2)
    assert counted(sat_tf.quantize_model, model) == (1, 2)
    quantized = results[-1]
    assert counted(sat_tf.calibrate, quantized, images) == (1, 1)
    assert counted(sat_tf.explain, quantized) == (2, 2)
    assert counted(sat_tf.export_tflite, quantized, path) == (1, 1)
    verify = functools.partial(sat_tf.verify_tflite, quantized, path, images, progress=False)
    assert counted(verify) == (1, 1)
    assert counted(verify, float_model=model) == (2, 3)
    annotated = tfmot.quantization.keras.quantize_annotate_model(model)
    assert counted(sat_tf.explain, annotated) == (1, 1)
    assert counted(sat_tf.quantize_model, annotated) == (2, 4)  # TFMOT builds another one


# -- pruned models ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stripped():
    model = float_models.build("without_normalization")
    schedule = tfmot.sparsity.keras.ConstantSparsity(0.5, 0, frequency=1)
    pruned = tfmot.sparsity.keras.prune_low_magnitude(model, pruning_schedule=schedule)
    pruned.compile(keras.optimizers.SGD(0.0), "mse")  # as if training had ended
    step = tfmot.sparsity.keras.UpdatePruningStep()
    pruned.fit(float_models.images(8), np.zeros((8, 5)), verbose=0, callbacks=[step])
    model = tfmot.sparsity.keras.strip_pruning(pruned)
    assert np.mean(model.get_layer("b").kernel.numpy() == 0.0) == 0.5
    return model


@pytest.mark.thorough
@pytest.mark.parametrize(("bits", "weight_range"), [(4, "layer"), (4, "channel"), (8, "layer")])
def test_pruned_weights_have_code_0_on_the_narrow_grid_and_a_warning_on_a_grid_without_0(
    bits, weight_range, stripped
):
    policy = BitPolicy.mobile(
        bits,
        weight_grid="narrow",
        weight_range=weight_range,
        initial_clipping_level=8.0,
        initial_classifier_clipping_level=10.0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized = sat_tf.quantize_model(stripped, policy)
    with pytest.warns(UserWarning, match=r"b \(50 % zeros\).*weight_grid='narrow'"):
        sat_tf.quantize_model(stripped, BitPolicy.mobile(4, weight_grid="dorefa"))
    for name in ("a", "b", "classifier"):
        kernel = stripped.get_layer(name).kernel.numpy()
        layer = quantized.get_layer(f"quant_{name}")
        found = layer.quantize_config.weights.integer_weights(layer.layer.kernel, {})
        assert np.all(found.codes.numpy()[kernel == 0.0] == 0)
        assert np.all(layer.effective_kernel().numpy()[kernel == 0.0] == 0.0)
    # Gradients reach them like all others: training moves them.
    latent = quantized.get_layer("quant_b").layer.kernel
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(quantized(float_models.images(8), training=True) ** 2)
    assert np.any(tape.gradient(loss, latent).numpy()[latent.numpy() == 0.0])
