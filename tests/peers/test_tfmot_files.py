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
from tests.export import zoo
from tests.export.proofs import calibrated, proved

L = keras.layers
tq = tfmot.quantization.keras
IMAGE = (8, 8, 3)


def _normalized_behind(layer, tensor):
    return L.ReLU()(L.BatchNormalization(momentum=0.0)(layer(tensor)))


def _branches():
    """Two branches that are joined, and a transposed convolution with its normalization."""
    image = keras.Input(IMAGE, name="image")
    one = _normalized_behind(L.Conv2D(4, 3, padding="same", use_bias=False), image)
    joined = L.Concatenate()([one, L.Conv2D(4, 3, padding="same")(image)])
    tensor = _normalized_behind(L.Conv2DTranspose(4, 3), joined)
    return keras.Model(image, L.Dense(4, name="classifier")(L.Flatten()(tensor)))


def _images(count=64):
    return np.random.default_rng(0).integers(0, 256, (count, *IMAGE)).astype(np.float32)


def _converted(model, images):
    """The file that TensorFlow's converter makes of a model of TFMOT."""
    for _ in range(3):  # as a training would, it shows the quantizers what they quantize
        model(images.astype(np.float32), training=True)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def _operators(content):
    """The operators of a file with the types of all that they read."""
    file = tfl.ModelT.InitFromPackedBuf(content, 0)
    tensors = file.subgraphs[0].tensors
    found = []
    for operator in file.subgraphs[0].operators:
        code = file.operatorCodes[operator.opcodeIndex]
        name = OPERATORS[max(code.builtinCode, code.deprecatedBuiltinCode)]
        found.append((name, [TYPES[tensors[i].type] for i in operator.inputs if i >= 0]))
    return found


def _kinds(content):
    return [name for name, _ in _operators(content)]


def _run(content, images, **options):
    interpreter = litert.Interpreter(model_content=content, **options)
    interpreter.allocate_tensors()
    (image,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()
    found = []
    for pixels in images:
        interpreter.set_tensor(image["index"], pixels[None])
        interpreter.invoke()
        found.append(interpreter.get_tensor(output["index"])[0])
    return np.stack(found)


@pytest.fixture(scope="module")
def theirs():
    """A model of TFMOT and its file."""
    keras.utils.set_random_seed(0)
    model, images = _branches(), _images() / 255.0
    model(images, training=True)
    model = tq.quantize_model(model)
    return model, _converted(model, images), images


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The same model with sat-tf, its file, and the proof."""
    keras.utils.set_random_seed(0)
    model, images = _branches(), _images()
    model(images, training=True)
    model, path = calibrated(model, 8, images), tmp_path_factory.mktemp("ours") / "model.tflite"
    _, proof = proved(model, path, images.astype(np.uint8))
    return model, path.read_bytes(), proof


# -- 2, 3: what was trained, and what runs -----------------------------------------------------


@pytest.mark.thorough
def test_files_of_tfmot_compute_something_else_mo368_mo309_mo974_tf47068_tf38845(theirs, ours):
    model, content, images = theirs
    output = model(images).numpy()
    assert np.any(np.abs(_run(content, images) - output) > 1e-3 * np.ptp(output))
    proof = ours[2].runtimes["xnnpack"]
    assert (proof.codes_differing, proof.outputs_differing) == (0, 0)
    assert proof.codes_compared > 10_000


@pytest.mark.thorough
def test_runtimes_give_other_integers_of_one_file_tf99072_tf102943_tf119412(theirs, ours):
    _, content, images = theirs
    builtin = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    assert np.any(
        _run(content, images) != _run(content, images, experimental_op_resolver_type=builtin)
    )
    # Runtimes give other integers of our file too; the proof counts them for each.
    counts = {name: runtime.codes_differing for name, runtime in ours[2].runtimes.items()}
    assert counts["xnnpack"] == 0
    assert counts["builtin"] > 0


# -- 13, 7: joined branches, transposed convolutions -------------------------------------------


@pytest.mark.thorough
def test_joined_branches_are_quantized_twice_by_tfmot_and_once_by_sat_tf_mo523(theirs, ours):
    assert _kinds(theirs[1]).count("QUANTIZE") > 1
    assert _kinds(ours[1]).count("QUANTIZE") == 1  # of the image


@pytest.mark.thorough
def test_normalizations_behind_transposed_convolutions_are_folded_tf43939(theirs, ours):
    operators = dict(_operators(ours[1]))
    assert operators["TRANSPOSE_CONV"].count("INT8") == 2
    assert not {"MUL", "ADD", "DEPTHWISE_CONV_2D"} & set(operators)
    assert {"MUL", "ADD"} <= set(_kinds(theirs[1]))


# -- 8, 5, 4: bits and ranges of one's own -----------------------------------------------------


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


def test_bits_of_ones_own_take_tfmots_normalizations_away_mo445():
    model = _annotated(_Weights(4), None)
    with (
        tq.quantize_scope({"_Weights": _Weights}),
        pytest.raises(RuntimeError, match="BatchNormalization'> is not supported"),
    ):
        tq.quantize_apply(model)


@pytest.mark.thorough
def test_ranges_of_ones_own_leave_the_convolution_float_mo552_mo1131_tf43882():
    model = _annotated(_Weights(8), _Weights(8))
    with tq.quantize_scope({"_Weights": _Weights}):
        content = _converted(tq.quantize_apply(model), _images(8) / 255.0)
    assert dict(_operators(content))["CONV_2D"] == ["FLOAT32"] * 3


@pytest.fixture(scope="module")
def four_bits():
    """A model whose every weight has 4 bits, by overrides and an annotation."""
    annotated = _annotated(sat_tf.configs.LayerConfig(weight_bits=4), None)
    policy = BitPolicy.mobile(8, weight_grid="narrow", overrides={"classifier": {"weight_bits": 4}})
    model = tq.quantize_apply(annotated, scheme=sat_tf.SatQuantizeScheme(policy))
    images = _images()
    model(images, training=True)
    return sat_tf.calibrate(model, images)


@pytest.mark.filterwarnings("ignore:calibrate")
def test_layers_have_bits_and_ranges_of_their_own_in_sat_tf_mo445_mo1131(four_bits, tmp_path):
    weights = {
        layer.layer.name: layer.quantize_config.weights.num_bits
        for layer in four_bits.layers
        if getattr(layer, "quantize_config", None) and layer.quantize_config.weights
    }
    assert weights == {"conv": 4, "classifier": 4}
    sat_tf.export_tflite(four_bits, tmp_path / "model.tflite")
    operators = dict(_operators((tmp_path / "model.tflite").read_bytes()))
    assert operators["CONV_2D"] == ["INT8", "INT8", "INT32"]
    assert not {"MUL", "ADD"} & set(operators)


@pytest.mark.filterwarnings("ignore:calibrate")
def test_4_bits_are_stored_in_4_bits_mo950_mo574_tf40917_tf50993_tf64193(four_bits, tmp_path):
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(four_bits, path, pack="int4")
    operators = dict(_operators(path.read_bytes()))
    assert operators["CONV_2D"][1] == operators["FULLY_CONNECTED"][1] == "INT4"
    proof = sat_tf.verify_tflite(four_bits, path, _images(16).astype(np.uint8))
    assert proof.codes_differing == 0


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_activations_of_4_bits_have_no_file_with_tfmot_mo950_tf60125(bits):
    # Weights of its experimental schemes at 4 bits arrive as INT4 from TensorFlow 2.21 on.
    scheme = default_n_bit.default_n_bit_quantize_scheme.DefaultNBitQuantizeScheme(
        num_bits_weight=4, num_bits_activation=bits
    )
    image = keras.Input(IMAGE, name="image")
    model = keras.Model(image, L.Conv2D(4, 3, name="conv")(image))
    with tq.quantize_scope():
        model = tq.quantize_apply(tq.quantize_annotate_model(model), scheme=scheme)
    if bits == 8:
        content = _converted(model, _images(8) / 255.0)
        assert dict(_operators(content))["CONV_2D"][1] == "INT4"
        return
    with pytest.raises(Exception, match="must be tensor of 32-bit float or QI8 type"):
        _converted(model, _images(8) / 255.0)


def test_activations_of_4_bits_have_a_file_with_sat_tf(tmp_path):
    image = keras.Input(IMAGE, name="image")
    tensor = L.Conv2D(4, 3, activation="relu", name="conv")(image)
    model = keras.Model(image, L.Conv2D(4, 3, name="second")(tensor))
    model, pixels = calibrated(model, 4, _images()), _images(16).astype(np.uint8)
    _, proof = proved(model, tmp_path / "model.tflite", pixels)
    assert next(codes.codes_used for codes in proof.codes if codes.name == "conv") == 16


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
