"""The operators that an NPU leaves to the CPU: the plan names those of the file's report."""

import dataclasses

import pytest
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from tests.export import zoo
from tests.export.zoo import Specimen, block, chain, convolution, head

layers = keras.layers


def activated():
    """Functions that files for CPUs look up, and a mean that they compute as a convolution."""
    return chain(
        (16, 16, 3),
        *block(convolution(8, name="stem"), layers.Activation("swish", name="swish")),
        layers.AveragePooling2D(4, name="pool"),
        *block(convolution(8, 1, name="point"), layers.LeakyReLU(0.2, name="leaky")),
        layers.UpSampling2D(2, interpolation="bilinear", name="wider"),
        *head(),
    )


SPECIMENS = {
    "activated": Specimen(activated),
    **{
        name: zoo.ZOO[name]
        for name in (
            *("residual", "preactivation", "average_pooling", "softmax", "zero_padding"),
            *("sums_of_many", "flattened", "dilated", "signed_mean_float_streams"),
        )
    },
}
TARGETS = ("ethos-u55", "ethos-u85", "edgetpu", "micro")
FEW = {("activated", "ethos-u55"), ("softmax", "edgetpu")}
EACH = [
    pytest.param(name, target, marks=[] if (name, target) in FEW else pytest.mark.thorough)
    for name in SPECIMENS
    for target in TARGETS
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "target"), EACH)
def test_a_plan_names_the_operators_that_the_file_leaves_to_the_cpu(name, target, tmp_path):
    policy = SPECIMENS[name].policy
    model = SPECIMENS[name].build()
    zoo.make_realistic(model)
    plan = sat_tf.explain(model, policy, target=target)
    quantized = sat_tf.quantize_model(model, dataclasses.replace(policy, target=target))
    sat_tf.calibrate(quantized, zoo.images_for(quantized))
    report = sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    assert report.target == plan.target.name == target
    assert plan.file_operators == sum(report.operators.values())
    assert list(plan.elsewhere) == report.elsewhere


def test_a_plan_for_a_cpu_names_none_that_it_computes():
    plan = sat_tf.explain(zoo.bottleneck(), BitPolicy.mobile(4), target="micro")
    assert plan.elsewhere == ()
    assert "TFLite Micro" not in str(plan)
    assert plan.policy.target == "micro"
    # Its kernels have 8 bits.
    packed = sat_tf.explain(zoo.bottleneck(), BitPolicy.mobile(4))
    assert plan.bytes > packed.bytes


def test_a_plan_names_what_tflite_micro_refuses():
    image = keras.Input((8, 8, 3))
    normal = layers.LayerNormalization()(convolution(4)(image))
    model = keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(normal)))
    plan = sat_tf.explain(model, BitPolicy.mobile(4, unsupported="float", target="micro"))
    assert [one.operator for one in plan.elsewhere] == ["REDUCE_PROD"]
    assert "TFLite Micro refuses 1 of " in str(plan)


def test_a_plan_shows_its_target_on_the_terminal_and_on_the_page(tmp_path):
    plan = sat_tf.explain(activated(), BitPolicy.mobile(4, target="ethos-u55"))
    shown = {"text": str(plan), "page": tmp_path / "plan.html"}
    plan.write_page(shown["page"])
    for text in (shown["text"], shown["page"].read_text(encoding="utf-8")):
        assert plan.target.verdict(plan.elsewhere, plan.file_operators).words in text


def test_a_model_of_open_sizes_is_refused_for_an_npu_before_it_is_quantized():
    image, other = keras.Input((None, None, 3), name="a"), keras.Input((None, 8, 3), name="b")
    both = layers.Add()([convolution(4)(image), convolution(4)(other)])
    model = keras.Model([image, other], layers.GlobalAveragePooling2D()(both))
    policy = BitPolicy.mobile(4, target="edgetpu")
    with pytest.raises(ValueError, match="2 problems") as error:
        sat_tf.quantize_model(model, policy)
    said = str(error.value)
    assert "a: received an input of shape (None, None, 3) for Google's Edge TPU" in said
    assert "b: received an input of shape (None, 8, 3)" in said
    plan = sat_tf.explain(model, policy)
    assert sum("constant shapes" in problem for problem in plan.problems) == 2
