import pytest

from sat_tf import models
from sat_tf.models import resnet, vgg


def test_the_table_names_every_family():
    assert dict(models.MODELS) == {
        "mobilenet_v1": models.mobilenet_v1,
        "mobilenet_v2": models.mobilenet_v2,
        "mobilenet_v2_small": models.mobilenet_v2_small,
        "resnet18": resnet.resnet18,
        "resnet50": resnet.resnet50,
        "preresnet50": resnet.preresnet50,
        "vgg16": vgg.vgg16,
        "vgg16_bn": vgg.vgg16_bn,
    }


def test_a_model_is_built_with_the_arguments_given():
    model = models.build(
        "mobilenet_v1", image_size=16, num_classes=3, width_multiplier=0.25, stem_stride=1
    )
    assert model.name == "mobilenet_v1"
    assert model.input_shape == (None, 16, 16, 3)
    assert model.get_layer("stem_conv").output_shape == (None, 16, 16, 8)
    assert model.output_shape == (None, 3)


def test_a_misspelt_model_is_answered_with_its_nearest_name():
    with pytest.raises(ValueError, match=r"'mobilnet_v2'; did you mean 'mobilenet_v2'\?"):
        models.build("mobilnet_v2")


def test_a_model_like_no_other_is_answered_with_all_names():
    with pytest.raises(ValueError, match="Expected one of: mobilenet_v1, mobilenet_v2") as error:
        models.build("zzz")
    assert "did you mean" not in str(error.value)


def test_all_unknown_arguments_are_named_at_once():
    with pytest.raises(ValueError, match="mobilenet_v1: 2 problems") as error:
        models.build("mobilenet_v1", width_multiplyer=0.5, image_sise=32, num_classes=10)
    assert "'width_multiplyer'; did you mean 'width_multiplier'?" in str(error.value)
    assert "'image_sise'; did you mean 'image_size'?" in str(error.value)
    assert "'num_classes';" not in str(error.value)
