"""The public functions take models of Keras 3 as they take those of tf_keras."""

import inspect

import keras as keras3
import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf import callbacks
from sat_tf.either_keras import is_keras3
from sat_tf.keras3 import twin
from tests.keras3.models import digits_network, pixels_and_labels

pytestmark = pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning")


@pytest.fixture(scope="module")
def quantized():
    keras3.utils.set_random_seed(1)
    images, _ = pixels_and_labels(64)
    return sat_tf.calibrate(sat_tf.quantize_model(digits_network(), 4), images)


def test_every_public_function_of_a_model_is_decided_for_keras_3():
    functions = [getattr(sat_tf, name) for name in sat_tf.__all__ if name != "from_keras3"]
    functions = [function for function in functions if inspect.isfunction(function)]
    parameters = [(function, [*inspect.signature(function).parameters]) for function in functions]
    taking_models = [function for function, names in parameters if names[:1] == ["model"]]
    assert len(taking_models) >= 11
    for function in taking_models:
        form = inspect.getclosurevars(function).nonlocals["by"]  # what `for_keras3` was given
        assert callable(getattr(twin, form))


def test_a_function_keeps_its_documentation_and_takes_the_model_by_name():
    image = keras.Input((4, 4, 3))
    model = keras.Model(image, keras.layers.Flatten()(keras.layers.Conv2D(2, 3)(image)))
    assert sat_tf.quantize_model.__doc__.startswith("Quantizes a float Keras model")
    assert isinstance(sat_tf.quantize_model(model=model, policy=4), keras.Model)
    three = sat_tf.quantize_model(policy=4, model=digits_network())
    assert is_keras3(three)
    assert not is_keras3(model)


@pytest.mark.thorough
def test_what_measures_plans_and_compares_with_a_float_model_works_on_the_twin(quantized, tmp_path):
    labelled = pixels_and_labels(64)
    assert len(sat_tf.audit(quantized, labelled).layers) >= 5
    assert len(sat_tf.sensitivity(digits_network(), labelled, 4).layers) >= 5
    plan = sat_tf.explain(quantized, sat_tf.BitPolicy.mobile(2))
    assert plan["conv_2"].weights.bits == 2
    path, pixels = tmp_path / "model.tflite", labelled[0][:16].astype(np.uint8)
    sat_tf.export_tflite(quantized, path)
    certificate = sat_tf.verify_tflite(quantized, path, pixels, float_model=digits_network())
    assert certificate.float_model
    assert certificate.codes_differing == 0


@pytest.mark.essential
def test_what_measures_steps_of_tf_keras_says_so(quantized):
    images, labels = pixels_and_labels(16)
    quantized.compile("sgd", "sparse_categorical_crossentropy")
    rules = callbacks.TrainingRules((images, labels))
    with pytest.raises(ValueError, match=r"TrainingRules: .*train sat_tf\.from_keras3\(model\)"):
        quantized.fit(images, labels, callbacks=[rules], verbose=0)
