"""Models that users of TFMOT bring: what it does with each, and what sat-tf does.

Numbers are those of issues of tensorflow/model-optimization (mo) and tensorflow/tensorflow (tf).
"""

import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from tests.export.proofs import calibrated, proved

# -- models that it refuses ------------------------------------------------------------------------

L = keras.layers
_tfmot_quantize = tfmot.quantization.keras.quantize_model


class Complaint(NamedTuple):
    """A model that users had trouble with."""

    issues: str  # Where they say so.
    build: Callable[[], object]
    tfmot: str  # What TFMOT's error says; "" where it takes the model.
    float_layers: tuple[str, ...] = ()  # The layers that our file computes in float32.


def _image():
    return keras.Input((8, 8, 3), name="image")


def _head(tensor):
    return L.Dense(4, name="classifier")(L.Flatten(name="flatten")(tensor))


def _chain(*layers, shape=(8, 8, 3)):
    """A classifier of layers one after the other."""
    image = tensor = keras.Input(shape, name="image")
    for layer in layers:
        tensor = layer(tensor)
    return keras.Model(image, _head(tensor))


def _conv(**options):
    return L.Conv2D(2, 3, **{"name": "conv", **options})


def _behind(operation):
    """A convolution of an image that an operation has changed."""
    image = _image()
    return keras.Model(image, _conv()(operation(image)))


def _lambda():
    return _chain(L.Lambda(lambda pixels: pixels / 255.0, name="scaled"), _conv())


def _transposed():
    normalization = L.BatchNormalization(momentum=0.0, name="bn")
    transposed = L.Conv2DTranspose(2, 3, name="conv")
    return _chain(_conv(name="before"), transposed, normalization, L.ReLU(name="relu"))


def _shared():
    twice = L.Conv2D(3, 3, padding="same", name="twice")
    return _chain(twice, twice)


class _Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="subclassed")
        self.dense = L.Dense(2, name="dense")

    def call(self, inputs):
        return self.dense(inputs)


def _subclassed():
    model = _Subclassed()
    model(np.zeros((1, 3), np.float32))
    return model


def _keras_3():
    import keras as keras_3  # noqa: TID251 - the library the complaint is about

    image = keras_3.Input((8, 8, 3), name="image")
    tensor = keras_3.layers.Conv2D(2, 3, name="conv")(image)
    return keras_3.Model(image, keras_3.layers.Flatten()(tensor))


COMPLAINTS = {
    "nested models": Complaint(
        "mo#957, mo#638, mo#377, tf#57034",
        lambda: _chain(keras.Sequential([_conv(input_shape=(8, 8, 3))], name="inner")),
        "Quantizing a keras Model inside another keras Model is not supported",
    ),
    "slices": Complaint(
        "mo#1139",
        lambda: _behind(lambda image: image[:, 1:]),
        "SlicingOpLambda'> is not supported",
    ),
    "operators": Complaint(
        "mo#1139", lambda: _behind(lambda image: image * 2.0), "TFOpLambda'> is not supported"
    ),
    "Lambda": Complaint("mo#1139", _lambda, "Requested the deserialization of a Lambda layer"),
    "Conv1D": Complaint(
        "mo#1031",
        lambda: _chain(L.Conv1D(2, 3, name="conv"), shape=(8, 3)),
        "Conv1D'> is not supported",
    ),
    "Conv2DTranspose": Complaint("tf#43939", _transposed, ""),
    "PReLU": Complaint(
        "mo#602, mo#942",
        lambda: _chain(_conv(), L.PReLU(name="prelu")),
        "PReLU'> is not supported",
        float_layers=("prelu",),
    ),
    "preprocessing": Complaint(
        "mo#764",
        lambda: _chain(L.Rescaling(1 / 255.0, name="rescaling"), _conv()),
        "Rescaling'> is not supported",
    ),
    "swish": Complaint("mo#372, mo#718", lambda: _chain(_conv(activation="swish")), ""),
    "shared layers": Complaint("mo#756", _shared, ""),
    "subclassed models": Complaint(
        "mo#292",
        _subclassed,
        "can only either be a keras Sequential or Functional model",
    ),
    "Keras 3": Complaint(
        "mo#1119, mo#1140, mo#1143, mo#1144, mo#1180, mo#1181, mo#1270",
        _keras_3,
        "can only either be a keras Sequential or Functional model",
    ),
}
# sat-tf takes these as models of tf_keras; tests/messages/explain.txt and placement.txt have what
# it says of Lambda layers and subclassed models.
TAKEN = [name for name in COMPLAINTS if name not in ("Lambda", "subclassed models", "Keras 3")]


@pytest.mark.filterwarnings("ignore")  # of Lambda layers, before it fails at them
@pytest.mark.parametrize("name", [name for name, row in COMPLAINTS.items() if row.tfmot])
def test_tfmot_refuses_what_users_complain_of(name):
    model, words = COMPLAINTS[name].build(), re.escape(COMPLAINTS[name].tfmot)
    with pytest.raises((ValueError, RuntimeError), match=words):
        _tfmot_quantize(model)


def test_what_tfmot_says_of_keras_3_is_on_the_page_word_for_word():
    page = (pathlib.Path(sat_tf.__file__).parents[1] / "docs" / "guides" / "tfmot.md").read_text()
    model = _keras_3()
    for name, given in {
        "quantize_apply": model,
        "quantize_model": model,
        "quantize_annotate_model": model,
        "quantize_annotate_layer": model.layers[1],
    }.items():
        with pytest.raises(ValueError, match="can only") as refused:
            getattr(tfmot.quantization.keras, name)(given)
        assert f"| `{name}`: `` {refused.value} `` |" in page


def test_a_keras_3_model_is_quantized_as_what_it_is():
    model = _keras_3()
    quantized = sat_tf.quantize_model(model)
    assert type(quantized).__module__.split(".")[0] == "keras"
    assert any(layer.name.startswith("quant_") for layer in quantized.layers)


@pytest.fixture(scope="module", params=TAKEN)
def taken(request):
    """A model that sat-tf takes, quantized and calibrated, and its images."""
    keras.utils.set_random_seed(0)
    complaint = COMPLAINTS[request.param]
    model = complaint.build()
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (64, *model.input_shape[1:])).astype(np.float32)
    model(images, training=True)  # statistics as if it had been trained
    return complaint, model, calibrated(model, 8, images), images


def test_a_model_that_sat_tf_takes_keeps_its_function_in_8_bits(taken):
    _, model, quantized, images = taken
    layers = [layer for layer in quantized.layers if not isinstance(layer, L.InputLayer)]
    assert all(isinstance(layer, QuantizedLayer) for layer in layers)
    weights = filter(None, (layer.quantize_config.weights for layer in layers))
    assert {quantizer.num_bits for quantizer in weights} == {8}
    expected, found = (each(images).numpy().ravel() for each in (model, quantized))
    assert np.corrcoef(expected, found)[0, 1] > 0.99


@pytest.mark.thorough
def test_its_file_is_all_integer_and_computes_the_proved_codes(taken, tmp_path):
    complaint, _, quantized, images = taken
    report, _ = proved(quantized, tmp_path / "model.tflite", images.astype(np.uint8))
    assert report.float_layers == list(complaint.float_layers)
    if not complaint.float_layers:
        assert [name.split()[0] for name in report.float_operators] == ["DEQUANTIZE"]


def test_sat_tf_lists_all_that_is_in_the_way_at_once():
    model = _chain(
        L.Conv2DTranspose(2, 3, dilation_rate=2, name="conv"),
        L.Conv2D(2, 3, activation="swish", name="fine"),
        L.Lambda(lambda values: values + 1.0, name="odd"),
    )
    with pytest.raises(ValueError, match="2 problems") as error:
        sat_tf.quantize_model(model)
    assert set(re.findall(r"- (\w+): ", str(error.value))) == {"conv", "odd"}


def test_tfmot_names_one_layer_at_a_time():
    with pytest.raises(RuntimeError, match="Layer one") as error:
        _tfmot_quantize(_chain(L.PReLU(name="one"), L.PReLU(name="other")))
    assert "other" not in str(error.value)


def test_a_lambda_layer_can_be_left_float():
    policy = BitPolicy.mobile(8, unsupported="float")
    quantized = sat_tf.quantize_model(_lambda(), policy)
    assert isinstance(quantized.get_layer("scaled"), L.Lambda)


# -- models that it takes --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs():
    return _tfmot_quantize(_plain())


FOUR = BitPolicy.mobile(4, first_last_weight_bits=4)
ONES = np.ones((2, 8, 8, 3), np.float32)


@pytest.fixture(scope="module")
def ours():
    return sat_tf.quantize_model(_plain(), FOUR)


def _plain():
    return _chain(_conv(name="frozen", trainable=False), _conv())


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("file", ["model.keras", "model.h5"])
def test_saved_models_load_without_a_scope_mo426_mo524_mo751(file, theirs, ours, tmp_path):
    def loaded(model):
        model.save(tmp_path / file)
        return keras.models.load_model(tmp_path / file)

    with pytest.raises((TypeError, ValueError)):
        loaded(theirs)
    np.testing.assert_array_equal(loaded(ours)(ONES), ours(ONES))


@pytest.mark.parametrize(
    "copy",
    [keras.models.clone_model, lambda model: keras.models.model_from_json(model.to_json())],
    ids=["clone_model", "model_from_json"],
)
def test_models_can_be_copied_mo773_mo1122(copy, theirs, ours):
    with pytest.raises((TypeError, ValueError)):
        copy(theirs)
    twin = copy(ours)
    twin.set_weights(ours.get_weights())
    np.testing.assert_array_equal(twin(ONES), ours(ONES))


def test_frozen_layers_stay_frozen(theirs, ours):
    assert any("frozen" in variable.name for variable in theirs.trainable_variables)
    frozen = ours.get_layer("quant_frozen")
    assert not [v for v in frozen.trainable_variables if "kernel" in v.name]


def test_4_bits_are_4_bits_mo950_mo574(theirs, ours):
    # TFMOT's scheme has 8 bits in its place, which no argument changes.
    bits = {
        quantizer.num_bits
        for layer in theirs.layers
        if hasattr(layer, "quantize_config")
        for _, quantizer in layer.quantize_config.get_weights_and_quantizers(layer.layer)
    }
    assert bits == {8}
    for layer in ours.layers:
        if isinstance(layer, QuantizedLayer) and layer.quantize_config.weights is not None:
            axes = layer.quantize_config.weights.range_axes
            kernel = np.moveaxis(layer.effective_kernel().numpy(), axes, range(len(axes)))
            channels = kernel.reshape(-1, int(np.prod(kernel.shape[len(axes) :])))
            assert all(len(np.unique(channel)) <= 16 for channel in channels)


def test_mixed_precision_is_kept_mo367_mo824():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = _plain()
    finally:
        keras.mixed_precision.set_global_policy(None)
    with pytest.raises(TypeError, match="type float32 that does not match type float16"):
        _tfmot_quantize(model)
    quantized = sat_tf.quantize_model(model)
    conv = quantized.get_layer("quant_conv")
    assert conv.layer.compute_dtype == "float16"
    # The quantizers compute in float32, the convolution in float16.
    assert {variable.dtype.name for variable in quantized.variables} == {"float32"}
    assert np.isfinite(quantized(ONES)).all()


# -- on several devices ------------------------------------------------------------------------


def _trained_on_two_replicas(quantize):
    """A model that has seen a batch of which one half is larger than the other."""
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    images = np.concatenate([np.full((4, 6), 0.2), np.ones((4, 6))]).astype(np.float32)
    with strategy.scope():
        features = keras.Input((6,), name="features")
        ones = L.Dense(1, kernel_initializer="ones", name="dense")
        model = quantize(keras.Model(features, ones(features)))
        model.compile(keras.optimizers.SGD(0.0), "mse")
    data = tf.data.Dataset.from_tensor_slices((images, np.zeros((8, 1), np.float32))).batch(8)
    model.fit(data.repeat(), steps_per_epoch=2, verbose=0)
    return model


def _scalars(model):
    found = [variable for variable in model.variables if variable.shape.rank == 0]
    return {v.name.split("/")[-1]: float(tf.convert_to_tensor(v)) for v in found}


@pytest.mark.thorough
def test_ranges_of_tfmot_are_those_of_the_first_replica_mo1068():
    model = _trained_on_two_replicas(_tfmot_quantize)
    ranges = {name: value for name, value in _scalars(model).items() if "quantize_layer" in name}
    assert max(ranges.values()) < 0.5  # of inputs up to 1
    assert tf.lite.TFLiteConverter.from_keras_model(model).convert()  # tf#42432 is no more


@pytest.mark.thorough
def test_ranges_of_sat_tf_are_those_of_the_whole_batch_mo1068_tf42432(tmp_path):
    # tests/qat/models/test_training.py compares whole trainings on one and on two replicas.
    policy = BitPolicy.mobile(8, input_max=1.0)
    model = _trained_on_two_replicas(lambda model: sat_tf.quantize_model(model, policy))
    assert _scalars(model)["highest:0"] == pytest.approx(6.0, rel=1e-5)
    sat_tf.export_tflite(model, tmp_path / "model.tflite")
    pixels = np.arange(60, dtype=np.uint8).reshape(10, 6)
    assert sat_tf.verify_tflite(model, tmp_path / "model.tflite", pixels).codes_differing == 0


# -- resumed -----------------------------------------------------------------------------------


def test_keras_files_do_not_load_even_in_tfmots_scope_mo1122_tf46755(theirs, tmp_path):
    with tfmot.quantization.keras.quantize_scope():
        theirs.save(tmp_path / "model.keras")
        with pytest.raises(ValueError, match=r"expected \d+ variables, but received"):
            keras.models.load_model(tmp_path / "model.keras")


def test_weights_of_a_model_in_training_load_into_another_one_tf59274(theirs, ours, tmp_path):
    # tests/qat/models/test_saving.py has the optimizer's state with them.
    others = _tfmot_quantize(_plain()), sat_tf.quantize_model(_plain(), FOUR)
    for model, other in zip((theirs, ours), others, strict=True):
        model.save_weights(tmp_path / "model.weights.h5")
        other.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_array_equal(other(ONES), model(ONES))
