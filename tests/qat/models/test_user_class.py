"""Models of the user's own class stay of that class, or it is said."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer

L = keras.layers
_POLICY = BitPolicy.mobile(4, initial_clipping_level=8.0, initial_classifier_clipping_level=10.0)


def _graph():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, activation="relu", name="stem")(image)
    return image, L.Dense(3, name="classifier")(L.Flatten(name="flat")(tensor))


@keras.utils.register_keras_serializable(package="test_user_class")
class Counting(keras.Model):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "counted": tf.constant(1.0)}


class Distilling(keras.Model):
    """Has a teacher, a temperature, a metric and a variable of its own."""

    def __init__(self, inputs, outputs, temperature, teacher=None, name=None):
        super().__init__(inputs, outputs, name=name)
        self.temperature = temperature
        self.teacher = teacher
        self.seen = keras.metrics.Mean(name="seen")
        self.average = tf.Variable(0.0, trainable=False)

    @property
    def metrics(self):
        return [*super().metrics, self.seen]

    def train_step(self, data):
        self.seen.update_state(self.temperature)
        self.average.assign_add(1.0)
        return {**super().train_step(data), "seen": self.seen.result()}


class OfItsOwnGraph(keras.Model):
    def __init__(self, classes=3):
        image, _ = _graph()
        tensor = L.Conv2D(4, 3, activation="relu", name="stem")(image)
        super().__init__(image, L.Dense(classes, name="classifier")(L.Flatten()(tensor)))

    def train_step(self, data):
        return super().train_step(data)


class Chain(keras.Sequential):
    def test_step(self, data):
        return super().test_step(data)


_PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3)).astype(np.float32)
_LABELS = np.arange(8) % 3


def _fit(model):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.fit(_PIXELS, _LABELS, batch_size=4, verbose=0).history


@pytest.mark.thorough
def test_a_model_of_the_user_s_class_is_trained_by_its_own_step(tmp_path):
    model = Counting(*_graph())
    quantized = sat_tf.quantize_model(model, _POLICY)
    again = sat_tf.requantize(quantized, BitPolicy.mobile(2))
    for made in (quantized, again):
        assert type(made) is Counting
        assert any(isinstance(layer, QuantizedLayer) for layer in made.layers)
    assert _fit(quantized)["counted"] == [1.0]
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is Counting
    assert len(loaded.weights) == len(quantized.weights)
    sat_tf.calibrate(quantized, np.zeros((64, 8, 8, 3), np.uint8) + np.uint8(9))
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")


@pytest.mark.thorough
def test_the_class_survives_quantize_apply():
    annotated = tfmot.quantization.keras.quantize_annotate_model(Counting(*_graph()))
    assert type(annotated) is Counting
    quantized = tfmot.quantization.keras.quantize_apply(
        annotated, scheme=sat_tf.SatQuantizeScheme(_POLICY)
    )
    assert type(quantized) is Counting
    assert _fit(quantized)["counted"] == [1.0]


@pytest.mark.thorough
def test_what_a_model_of_the_user_s_class_holds_is_carried_over():
    teacher = keras.Sequential([keras.Input((8, 8, 3)), L.Flatten()])
    model = Distilling(*_graph(), temperature=5.0, teacher=teacher)
    model.average.assign(7.0)
    model.labels = ["a", "b"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized = sat_tf.quantize_model(model, _POLICY)
    assert type(quantized) is Distilling
    assert (quantized.temperature, list(quantized.labels)) == (5.0, ["a", "b"])
    assert quantized.teacher is teacher
    assert float(quantized.average) == 7.0
    assert quantized.seen is not model.seen
    assert _fit(quantized)["seen"] == [5.0]
    assert (float(quantized.average), float(model.average)) == (9.0, 7.0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (OfItsOwnGraph, "OfItsOwnGraph"),
        (lambda: Chain([keras.Input((8, 8, 3)), L.Flatten(), L.Dense(3)]), "Chain"),
    ],
)
def test_a_class_that_cannot_be_kept_is_named_with_the_fix(build, name):
    model = build()
    expected = rf"class {name}, .* plain keras.Model, without .*train {name}\(model"
    with pytest.warns(UserWarning, match=expected) as seen:
        quantized = sat_tf.quantize_model(model, _POLICY)
    assert seen[0].filename == __file__
    assert _fit(quantized)["loss"]


def test_layers_of_the_old_graph_that_a_class_holds_are_named():
    model = Counting(*_graph())
    model.head = model.get_layer("classifier")
    with pytest.warns(UserWarning, match="lacks head, which are layers of the old one"):
        quantized = sat_tf.quantize_model(model, _POLICY)
    assert not hasattr(quantized, "head")


@pytest.mark.parametrize(
    "build",
    [
        lambda: keras.Model(*_graph()),
        lambda: keras.Sequential([keras.Input((8, 8, 3)), L.Flatten(), L.Dense(3)]),
    ],
)
def test_classes_of_keras_are_no_reason_to_warn(build):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sat_tf.quantize_model(build(), _POLICY)
