import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.qat import images
from sat_tf.qat.model_class import processor_of
from sat_tf.qat.reconstruction import blocks
from tests.qat import float_models

L = keras.layers


def _networks(float_model, policy=None):
    quantized = sat_tf.quantize_model(float_model, policy or sat_tf.BitPolicy.mobile(4))
    network = Network(quantized)
    reference, problems = blocks.find_reference(network, float_model, processor_of(quantized))
    assert not problems
    return network, reference


def _ends(name, policy=None):
    return [
        block.reference
        for block in blocks.find_blocks(*_networks(float_models.build(name), policy))
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("plain", ["a_relu", "b_relu", "classifier"]),
        ("mobile_block", ["a_relu", "project_bn", "add", "last_relu", "classifier"]),
        ("residual", ["a_relu", "add_relu", "classifier"]),
        ("branches", ["a_relu", "joined", "d_relu", "classifier"]),
        ("softmax_in_the_classifier", ["a_relu", "classifier"]),
    ],
)
def test_blocks_end_where_all_later_layers_read_one_tensor(name, ends):
    assert _ends(name) == ends


@pytest.mark.filterwarnings("ignore")
def test_without_quantized_activations_blocks_are_the_same():
    policy = sat_tf.BitPolicy(weight_bits=4, activation_bits=None)
    assert _ends("mobile_block", policy) == _ends("mobile_block")


def _of_everything():
    """Two inputs, three outputs, a shared layer, a model inside, and squeeze-and-excitation."""
    one, other = keras.Input((8, 8, 3), name="one"), keras.Input((8, 8, 3), name="other")
    shared = L.Conv2D(4, 3, padding="same", activation="relu", name="shared")
    total = L.Add(name="add")([shared(one), shared(other)])
    layers = [L.Input((8, 8, 4)), L.Conv2D(6, 3, name="conv"), L.ReLU(name="relu")]
    inside = keras.Sequential(layers, "inside")
    features = inside(total)
    gate = L.GlobalAveragePooling2D(keepdims=True, name="squeeze")(features)
    gate = L.Conv2D(2, 1, activation="relu", name="reduce")(gate)
    gate = L.Conv2D(6, 1, activation="sigmoid", name="excite")(gate)
    features = L.Multiply(name="gated")([features, gate])
    pooled = L.GlobalAveragePooling2D(name="pool")(features)
    heads = {
        "classes": L.Dense(3, activation="softmax", name="classes")(pooled),
        "box": L.Dense(4, name="box")(pooled),
        "score": L.Dense(1, activation="sigmoid", name="score")(pooled),
    }
    return keras.Model({"one": one, "other": other}, heads, name="everything")


@pytest.mark.filterwarnings("ignore")
def test_blocks_of_shared_layers_models_inside_gates_and_several_outputs():
    network, reference = _networks(_of_everything())
    ends = [block.reference for block in blocks.find_blocks(network, reference)]
    assert ends[:3] == ["add", "inside/relu", "gated"]
    assert {*ends[3:]} == {"classes", "box", "score_sigmoid"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", float_models.EVERY)
def test_every_block_ends_at_tensors_of_one_shape(name):
    network, reference = _networks(float_models.build(name))
    found = blocks.find_blocks(network, reference)
    assert [block.node for block in found][-1] in network.outputs
    for block in found:
        assert network[block.node].shape == reference[block.reference].shape


@pytest.mark.filterwarnings("ignore")
def test_a_front_holds_what_is_still_read_and_computes_what_the_model_does(monkeypatch):
    monkeypatch.setattr(images, "MOST_BYTES_IN_MEMORY", 2000)
    network, reference = _networks(float_models.build("mobile_block"))
    given = float_models.images(70)
    front = blocks.Front(network, [given])
    for block in blocks.find_blocks(network, reference):
        span = front.up_to([block.node])
        front.advance(span, keep=[block.node])
        read = {node.name for node in network if node.name in front.tensors}
        assert read - {block.node} <= {name for node in network for name in node.inputs}
        assert len(front.tensors) <= 2
    (logits,) = front.tensors.values()
    computed = dict(network.computed({network.input: given}))[network.output].numpy()
    np.testing.assert_allclose(logits[:], computed, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_another_model_of_the_same_layers_is_told_by_its_shapes():
    image = keras.Input((8, 8, 3), name="image")

    def built(filters):
        features = L.Conv2D(filters, 3, name="conv")(image)
        return keras.Model(image, L.Dense(2, name="head")(L.Flatten()(features)), name="net")

    quantized = sat_tf.quantize_model(built(4), sat_tf.BitPolicy.mobile(4))
    _, problems = blocks.find_reference(Network(quantized), built(5), processor_of(quantized))
    assert len(problems) == 2
    assert "conv: received weights of the shapes [(3, 3, 3, 5), (5,)], expected" in problems[0]
    assert "head: " in problems[1]


@pytest.mark.filterwarnings("ignore")
def test_another_model_of_the_same_shapes_is_told_by_its_weights():
    float_model = float_models.build("mobile_block")
    quantized = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(4))
    other = float_models.build("mobile_block", seed=1)
    _, problems = blocks.find_reference(Network(quantized), other, processor_of(quantized))
    assert len(problems) == 1
    assert "nothing in common with those of the quantized model in " in problems[0]
    assert "expand" in problems[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_weights_that_training_has_moved_are_those_of_the_model(bits):
    float_model = float_models.build("mobile_block")
    quantized = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(bits))
    draw = np.random.default_rng(bits)
    for layer in quantized.layers:
        for variable in layer.trainable_variables:
            # Noise as large as the weights leaves a correlation of 0.7.
            value = variable.numpy()
            variable.assign(value + draw.normal(0.0, max(np.std(value), 1e-3), value.shape))
    _, problems = blocks.find_reference(Network(quantized), float_model, processor_of(quantized))
    assert not problems
