import inspect

import numpy as np
import pytest

from sat_tf.training import models
from sat_tf.training.models.options import OPTIONS

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


def test_integers_of_numpy_are_integers():
    model = models.mobilenet_v1(np.int64(8), np.int32(2), width_multiplier=np.float32(0.25))
    assert model.output_shape == (None, 2)
