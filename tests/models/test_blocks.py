import numpy as np
import pytest

from sat_tf import models
from sat_tf.models.blocks import make_divisible


@pytest.mark.parametrize(
    ("channels", "rounded"),
    [
        (1, 8),
        (8, 8),
        (11.2, 16),  # 8 would lose more than a tenth.
        (12, 16),
        (11.9, 16),
        (24 * 0.35, 8),
        (67, 64),
        (68, 72),
        (1280 * 1.4, 1792),
    ],
)
def test_channels_become_multiples_of_8(channels, rounded):
    assert make_divisible(channels) == rounded


@pytest.mark.parametrize("divisor", [1, 4, 8, 16])
def test_rounding_never_loses_more_than_a_tenth(divisor):
    channels = np.linspace(0.5, 2000, 4001)
    rounded = np.array([make_divisible(value, divisor) for value in channels])
    assert (rounded % divisor == 0).all()
    assert (rounded >= 0.9 * channels).all()
    assert (rounded <= np.maximum(divisor, channels + divisor)).all()


@pytest.mark.parametrize("name", models.MODELS)
def test_one_error_names_every_bad_argument(name):
    bad = {
        "image_size": 0,
        "num_classes": 2.5,
        "width_multiplier": -1.0,
        "stem_stride": 3,
        "rectifier_max": float("nan"),
        "dropout": 1.0,
        "seed": "zero",
    }
    with pytest.raises(ValueError, match=name) as error:
        models.build(name, **bad)
    lines = str(error.value).splitlines()[1:]
    assert len(lines) == len(bad)
    for line, (argument, value) in zip(lines, bad.items(), strict=True):
        assert line.startswith(f"  {argument}: received {value!r}; expected ")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("image_size", -1),
        ("image_size", (224, 224)),
        ("image_size", True),
        ("num_classes", 0),
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
    with pytest.raises(ValueError, match=f"  {argument}: received ") as error:
        models.mobilenet_v2(**{argument: value})
    assert len(str(error.value).splitlines()) == 2


def test_integers_of_numpy_are_integers():
    model = models.mobilenet_v1(np.int64(8), np.int32(2), width_multiplier=np.float32(0.25))
    assert model.output_shape == (None, 2)
