"""The page `docs/guides/tfmot.md`: what TFMOT does with the models of its users, and sat-tf.

Numbers are those of issues of tensorflow/model-optimization (mo) and tensorflow/tensorflow (tf).
"""

import pathlib
import re

import keras as keras3  # noqa: TID251 - the library that a complaint is about
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from ai_edge_litert import interpreter as litert
from ai_edge_litert import schema_py_generated as tfl
from tensorflow_model_optimization.python.core.quantization.keras.experimental import default_n_bit

import sat_tf
from sat_tf.exact.tflite.contents import OPERATORS, TYPES
from sat_tf.export import compare_operators
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from tests.export import zoo
from tests.export.proofs import calibrated, proved

L = keras.layers
tq = tfmot.quantization.keras
IMAGE = (8, 8, 3)
ONES = np.ones((2, *IMAGE), np.float32)


def _images(shape=IMAGE, count=64):
    return np.random.default_rng(0).integers(0, 256, (count, *shape)).astype(np.float32)


def _chain(*layers, shape=IMAGE):
    """A classifier of layers one after the other."""
    image = tensor = keras.Input(shape, name="image")
    for layer in (*layers, L.Flatten(name="flatten"), L.Dense(4, name="classifier")):
        tensor = layer(tensor)
    return keras.Model(image, tensor)


def _conv(**options):
    return L.Conv2D(2, 3, **{"name": "conv", **options})


def _behind(operation):
    """A convolution of an image that an operation has changed."""
    image = keras.Input(IMAGE, name="image")
    return keras.Model(image, _conv()(operation(image)))


def _lambda():
    return _chain(L.Lambda(lambda pixels: pixels / 255.0, name="scaled"), _conv())


def _shared():
    twice = L.Conv2D(3, 3, padding="same", name="twice")
    return _chain(twice, twice)


def _keras_3():
    image = keras3.Input(IMAGE, name="image")
    tensor = keras3.layers.Conv2D(2, 3, name="conv")(image)
    return keras3.Model(image, keras3.layers.Flatten()(tensor))


# -- models that it refuses ------------------------------------------------------------------------


# Models that users had trouble with: the issues, what TFMOT says, "" where it takes the model, and
# the model.
COMPLAINTS = {
    "nested models": (
        "mo#957, mo#638, mo#377, tf#57034",
        "Quantizing a keras Model inside another keras Model is not supported",
        lambda: _chain(keras.Sequential([_conv(input_shape=IMAGE)], name="inner")),
    ),
    "slices": (
        "mo#1139",
        "SlicingOpLambda'> is not supported",
        lambda: _behind(lambda x: x[:, 1:]),
    ),
    "operators": ("mo#1139", "TFOpLambda'> is not supported", lambda: _behind(lambda x: x * 2.0)),
    "Lambda": ("mo#1139", "Requested the deserialization of a Lambda layer", _lambda),
    "Conv1D": (
        "mo#1031",
        "Conv1D'> is not supported",
        lambda: _chain(L.Conv1D(2, 3, name="conv"), shape=(8, 3)),
    ),
    "Conv2DTranspose": (
        "tf#43939",
        "",
        lambda: _chain(
            *(_conv(name="before"), L.Conv2DTranspose(2, 3, name="conv")),
            *(L.BatchNormalization(momentum=0.0, name="bn"), L.ReLU(name="relu")),
        ),
    ),
    "PReLU": (
        "mo#602, mo#942",
        "PReLU'> is not supported",
        lambda: _chain(_conv(), L.PReLU(name="prelu")),
    ),
    "preprocessing": (
        "mo#764",
        "Rescaling'> is not supported",
        lambda: _chain(L.Rescaling(1 / 255.0, name="rescaling"), _conv()),
    ),
    "swish": ("mo#372, mo#718", "", lambda: _chain(_conv(activation="swish"))),
    "shared layers": ("mo#756", "", _shared),
    "Keras 3": (
        "mo#1119, mo#1140, mo#1143, mo#1144, mo#1180, mo#1181, mo#1270",
        "can only either be a keras Sequential or Functional model",
        _keras_3,
    ),
}
# sat-tf takes these as models of tf_keras; tests/messages/explain.txt and placement.txt have what
# it says of Lambda layers and subclassed models.
TAKEN = [name for name in COMPLAINTS if name not in ("Lambda", "Keras 3")]


@pytest.mark.filterwarnings("ignore")  # of Lambda layers, before it fails at them
@pytest.mark.parametrize("name", [name for name, row in COMPLAINTS.items() if row[1]])
def test_tfmot_refuses_what_users_complain_of(name):
    _, words, build = COMPLAINTS[name]
    model = build()
    with pytest.raises((ValueError, RuntimeError), match=re.escape(words)):
        tq.quantize_model(model)


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
            getattr(tq, name)(given)
        assert f"| `{name}`: `` {refused.value} `` |" in page


@pytest.fixture(scope="module", params=TAKEN)
def taken(request):
    """A model that sat-tf takes, quantized and calibrated, and its images."""
    keras.utils.set_random_seed(0)
    model = COMPLAINTS[request.param][-1]()
    images = _images(model.input_shape[1:])
    model(images, training=True)  # statistics as if it had been trained
    return request.param, model, calibrated(model, 8, images), images


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
    name, _, quantized, images = taken
    report, _ = proved(quantized, tmp_path / "model.tflite", images.astype(np.uint8))
    in_float = ["prelu"] if name == "PReLU" else []
    assert report.float_layers == in_float
    assert in_float or [each.split()[0] for each in report.float_operators] == ["DEQUANTIZE"]


def test_a_lambda_layer_can_be_left_float():
    quantized = sat_tf.quantize_model(_lambda(), BitPolicy.mobile(8, unsupported="float"))
    assert isinstance(quantized.get_layer("scaled"), L.Lambda)


# -- models that it takes --------------------------------------------------------------------------


def _plain():
    return _chain(_conv(name="frozen", trainable=False), _conv())


@pytest.fixture(scope="module")
def both():
    """A model that TFMOT has quantized, and the same quantized by sat-tf."""
    policy = BitPolicy.mobile(4, first_last_weight_bits=4)
    return tq.quantize_model(_plain()), sat_tf.quantize_model(_plain(), policy)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("file", ["model.keras", "model.h5"])
def test_saved_models_load_without_a_scope_mo426_mo524_mo751(file, both, tmp_path):
    def loaded(model):
        model.save(tmp_path / file)
        return keras.models.load_model(tmp_path / file)

    theirs, ours = both
    with pytest.raises((TypeError, ValueError)):
        loaded(theirs)
    np.testing.assert_array_equal(loaded(ours)(ONES), ours(ONES))


def test_keras_files_do_not_load_even_in_tfmots_scope_mo1122_tf46755(both, tmp_path):
    with tq.quantize_scope():
        both[0].save(tmp_path / "model.keras")
        with pytest.raises(ValueError, match=r"expected \d+ variables, but received"):
            keras.models.load_model(tmp_path / "model.keras")


def test_frozen_layers_stay_frozen_and_4_bits_are_4_bits_mo950_mo574(both):
    theirs, ours = both
    assert any("frozen" in variable.name for variable in theirs.trainable_variables)
    frozen = ours.get_layer("quant_frozen")
    assert not [v for v in frozen.trainable_variables if "kernel" in v.name]
    # TFMOT's scheme has 8 bits in their place, which no argument changes.
    configs = [(each.quantize_config, each) for each in theirs.layers[2:]]
    pairs = [pair for own, each in configs for pair in own.get_weights_and_quantizers(each.layer)]
    assert {quantizer.num_bits for _, quantizer in pairs} == {8}
    weights = [each.quantize_config.weights for each in ours.layers[1:]]
    assert {quantizer.num_bits for quantizer in filter(None, weights)} == {4}
    for name in ("quant_conv", "quant_classifier"):
        kernel = ours.get_layer(name).effective_kernel().numpy()
        assert all(len(np.unique(kernel[..., i])) <= 16 for i in range(kernel.shape[-1]))


def _normalized_behind(layer, tensor):
    return L.ReLU()(L.BatchNormalization(momentum=0.0)(layer(tensor)))


def _branches():
    """Two branches that are joined, and a transposed convolution with its normalization."""
    image = keras.Input(IMAGE, name="image")
    one = _normalized_behind(L.Conv2D(4, 3, padding="same", use_bias=False), image)
    joined = L.Concatenate()([one, L.Conv2D(4, 3, padding="same")(image)])
    tensor = _normalized_behind(L.Conv2DTranspose(4, 3), joined)
    return keras.Model(image, L.Dense(4, name="classifier")(L.Flatten()(tensor)))


def _converted(model, images):
    """The file that TensorFlow's converter makes of a model of TFMOT."""
    for _ in range(3):  # as a training would, it shows the quantizers what they quantize
        model(images.astype(np.float32), training=True)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def _operators(content):
    """The types of all that the operators of a file read, by their names."""
    file = tfl.ModelT.InitFromPackedBuf(content, 0)
    tensors = file.subgraphs[0].tensors
    found = {}
    for operator in file.subgraphs[0].operators:
        code = file.operatorCodes[operator.opcodeIndex]
        name = OPERATORS[max(code.builtinCode, code.deprecatedBuiltinCode)]
        found[name] = [TYPES[tensors[i].type] for i in operator.inputs if i >= 0]
    return found


@pytest.mark.thorough
def test_files_of_tfmot_compute_something_else_mo368_mo309_mo974_tf47068_tf38845(tmp_path):
    keras.utils.set_random_seed(0)
    model, images = _branches(), _images() / 255.0
    model(images, training=True)
    theirs = tq.quantize_model(model)
    content = _converted(theirs, images)
    interpreter, found = litert.Interpreter(model_content=content), []
    interpreter.allocate_tensors()
    (image,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()
    for pixels in images:
        interpreter.set_tensor(image["index"], pixels[np.newaxis])
        interpreter.invoke()
        found.append(interpreter.get_tensor(output["index"])[0])
    trained = theirs(images).numpy()
    assert np.any(np.abs(np.stack(found) - trained) > 1e-3 * np.ptp(trained))
    model(_images(), training=True)  # statistics of pixels that are not scaled
    ours, path = calibrated(model, 8, _images()), tmp_path / "model.tflite"
    proof = proved(ours, path, _images().astype(np.uint8))[1].runtimes["xnnpack"]
    assert (proof.codes_differing, proof.outputs_differing) == (0, 0)
    assert proof.codes_compared > 10_000
    # A normalization behind a transposed convolution is folded: tf#43939.
    assert {"MUL", "ADD"} <= set(_operators(content))
    operators = _operators(path.read_bytes())
    assert operators["TRANSPOSE_CONV"].count("INT8") == 2
    assert not {"MUL", "ADD", "DEPTHWISE_CONV_2D"} & set(operators)


class _Weights(tq.QuantizeConfig):
    """Weights alone, by one range a layer, as TFMOT's guide has its users write it."""

    def __init__(self, num_bits):
        self.num_bits = num_bits

    def get_weights_and_quantizers(self, layer):
        if not hasattr(layer, "kernel"):
            return []
        quantizer = tq.quantizers.LastValueQuantizer(
            num_bits=self.num_bits, symmetric=True, narrow_range=True, per_axis=False
        )
        return [(layer.kernel, quantizer)]

    def get_activations_and_quantizers(self, layer):
        return []

    def set_quantize_weights(self, layer, quantize_weights):
        if quantize_weights:
            (layer.kernel,) = quantize_weights

    def set_quantize_activations(self, layer, quantize_activations):
        pass

    def get_output_quantizers(self, layer):
        return []

    def get_config(self):
        return {"num_bits": self.num_bits}


def _annotated(conv_config, bn_config):
    """A normalized convolution and a classifier, whose layers are annotated with configs."""
    layers = {
        L.Conv2D(4, 3, use_bias=False, name="conv"): conv_config,
        L.BatchNormalization(momentum=0.0, name="bn"): bn_config,
        **dict.fromkeys((L.ReLU(), L.Flatten(), L.Dense(4, name="classifier"))),
    }
    image = tensor = keras.Input(IMAGE, name="image")
    for layer, config in layers.items():
        tensor = tq.quantize_annotate_layer(layer, config)(tensor)
    return keras.Model(image, tensor)


@pytest.mark.thorough
def test_bits_of_ones_own_take_tfmots_normalizations_away_or_leave_the_convolution_float():
    """That is of mo445, and of mo552, mo1131 and tf43882."""
    with tq.quantize_scope({"_Weights": _Weights}):
        with pytest.raises(RuntimeError, match="BatchNormalization'> is not supported"):
            tq.quantize_apply(_annotated(_Weights(4), None))
        model = tq.quantize_apply(_annotated(_Weights(8), _Weights(8)))
        content = _converted(model, _images(count=8) / 255.0)
    assert _operators(content)["CONV_2D"] == ["FLOAT32"] * 3


@pytest.mark.filterwarnings("ignore:calibrate")
def test_layers_have_bits_of_their_own_in_sat_tf_and_are_stored_in_them_mo445_mo950(tmp_path):
    annotated = _annotated(sat_tf.configs.LayerConfig(weight_bits=4), None)
    policy = BitPolicy.mobile(8, weight_grid="narrow", overrides={"classifier": {"weight_bits": 4}})
    model = tq.quantize_apply(annotated, scheme=sat_tf.SatQuantizeScheme(policy))
    model(_images(), training=True)
    sat_tf.calibrate(model, _images())
    configs = [getattr(layer, "quantize_config", None) for layer in model.layers]
    weights = [config.weights for config in configs if config and config.weights]
    assert [quantizer.num_bits for quantizer in weights] == [4, 4]
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(model, path)
    operators = _operators(path.read_bytes())
    assert operators["CONV_2D"] == ["INT8", "INT8", "INT32"]
    assert not {"MUL", "ADD"} & set(operators)
    sat_tf.export_tflite(model, path, pack="int4")
    operators = _operators(path.read_bytes())
    assert operators["CONV_2D"][1] == operators["FULLY_CONNECTED"][1] == "INT4"
    proof = sat_tf.verify_tflite(model, path, _images(count=16).astype(np.uint8))
    assert proof.codes_differing == 0


@pytest.mark.slow
def test_weights_of_4_bits_arrive_as_int4_by_an_experimental_scheme_of_tfmot_mo950_tf40917():
    scheme = default_n_bit.default_n_bit_quantize_scheme.DefaultNBitQuantizeScheme(
        num_bits_weight=4, num_bits_activation=8
    )
    with tq.quantize_scope():
        annotated = tq.quantize_annotate_model(_chain(L.Conv2D(4, 3, name="conv")))
        model = tq.quantize_apply(annotated, scheme=scheme)
    content = _converted(model, _images(count=8) / 255.0)
    assert _operators(content)["CONV_2D"][1] == "INT4"


# -- by the rules of kernels -----------------------------------------------------------------------


def _keyword():
    convs = L.Conv2D(16, (10, 4), strides=2, padding="same", use_bias=False), zoo.depthwise()
    end = L.AveragePooling2D((25, 5)), L.Flatten(), L.Dense(12, activation="softmax")
    return zoo.chain((49, 10, 1), *zoo.block(*convs), *end)


def _joined():
    image = keras.Input((16, 16, 3))
    convs = [L.Conv2D(8, size, padding="same", use_bias=False) for size in (1, 3)]
    tensor = L.Concatenate()([_normalized_behind(conv, image) for conv in convs])
    tensor = L.GlobalAveragePooling2D()(L.MaxPooling2D()(tensor))
    return keras.Model(image, L.Dense(4)(tensor))


SMALL = {"input_shape": (32, 32, 3), "weights": None, "classes": 10}
NETWORKS = {
    "keyword": _keyword,
    "residual": zoo.residual(rectified=True),
    "joined": _joined,
    "mobilenet_v1": lambda: keras.applications.MobileNet(alpha=0.25, **SMALL),
    "mobilenet_v2": lambda: keras.applications.MobileNetV2(alpha=0.35, **SMALL),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETWORKS)
def test_files_of_tfmot_are_computed_by_the_rules_of_kernels(name, tmp_path):
    keras.utils.set_random_seed(0)
    model = tq.quantize_model(NETWORKS[name]())
    images = np.random.default_rng(0).uniform(-1.0, 1.0, (16, *model.input_shape[1:]))
    path = tmp_path / "tfmot.tflite"
    path.write_bytes(_converted(model, images))
    runtimes = "builtin", "reference", "arm_xnnpack"
    found = compare_operators(path, images[:2], runtimes=runtimes, progress=False)
    assert found.multiply_adds_simulated == 1.0
    for runtime in ("xnnpack", "builtin", "reference"):
        assert found.total(runtime).own.compared > 1_000
        assert found.total(runtime).own.differing == 0
    missing = {one.kind for one in found.operators if not one.counts}
    assert missing <= {"DEQUANTIZE", "SHAPE", "STRIDED_SLICE", "PACK"}
