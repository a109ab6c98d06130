import inspect

import numpy as np
import pytest

from sat_tf import models
from sat_tf.models import resnet
from sat_tf.models.options import OPTIONS

BAD = {
    "image_size": 0,
    "num_classes": 2.5,
    "width_multiplier": -1.0,
    "stage_blocks": (2, 0),
    "stem_kernel_size": 0,
    "stem_stride": 3,
    "stem_pool": 1,
    "hidden_units": "many",
    "head": "pool",
    "rectified_inputs": 1,
    "classifier_stddev": 0.0,
    "rectifier_max": float("nan"),
    "dropout": 1.0,
    "seed": "zero",
}


def test_every_option_is_of_some_family():
    taken = {
        name for build in models.MODELS.values() for name in inspect.signature(build).parameters
    }
    assert set(OPTIONS) == taken


@pytest.mark.parametrize("name", models.MODELS)
def test_one_error_names_every_bad_argument(name):
    taken = inspect.signature(models.MODELS[name]).parameters
    bad = {option: value for option, value in BAD.items() if option in taken}
    assert set(bad) == set(taken)
    with pytest.raises(ValueError, match=name) as error:
        models.build(name, **bad)
    lines = str(error.value).splitlines()[1:]
    assert len(lines) == len(bad)
    for line, (argument, value) in zip(lines, bad.items(), strict=True):
        assert line.startswith(f"  - {argument}: received {value!r}; expected ")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("image_size", -1),
        ("image_size", (224, 224)),
        ("image_size", True),
        ("num_classes", 0),
        ("image_size", 10**6),
        ("num_classes", 10**9),
        ("width_multiplier", 1e6),
        ("width_multiplier", 10**400),
        ("width_multiplier", 0),
        ("width_multiplier", float("inf")),
        ("width_multiplier", "1.0"),
        ("stem_stride", 0),
        ("stem_stride", "2"),
        ("rectifier_max", 0.0),
        ("rectifier_max", "relu6"),
        ("dropout", -0.1),
        ("dropout", None),
        ("seed", 1.5),
        ("seed", True),
    ],
)
def test_each_bad_argument_is_refused_alone(argument, value):
    with pytest.raises(ValueError, match=f"  - {argument}: received ") as error:
        models.mobilenet_v2(**{argument: value})
    assert len(str(error.value).splitlines()) == 2


def test_integers_of_numpy_are_integers():
    model = models.mobilenet_v1(np.int64(8), np.int32(2), width_multiplier=np.float32(0.25))
    assert model.output_shape == (None, 2)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("stage_blocks", ()),
        ("stage_blocks", 2),
        ("stage_blocks", "2222"),
        ("stage_blocks", (2, 2.0)),
        ("stem_kernel_size", 7.0),
        ("stem_pool", None),
    ],
)
def test_each_bad_option_of_residual_networks_is_refused_alone(argument, value):
    with pytest.raises(ValueError, match=f"  - {argument}: received ") as error:
        resnet.resnet18(**{argument: value})
    assert len(str(error.value).splitlines()) == 2
