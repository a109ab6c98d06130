"""Policies of every grid: each is exported exactly, or says before the training that it is not."""

import warnings

import pytest
import tf_keras as keras

import sat_tf
from sat_tf.core.grid import GRIDS
from sat_tf.qat.layout import GuessedClippingLevelsWarning
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import GRID_NAMES
from sat_tf.qat.wrapper import QuantizedLayer
from tests.export.proofs import calibrated, proved
from tests.export.zoo import chain, images_for

L = keras.layers
_PRESETS = {"mobile": BitPolicy.mobile, "paper": BitPolicy.paper}


def _of_all_bits() -> keras.Model:
    """A first layer, one for each number of bits, and a last one."""
    keras.utils.set_random_seed(5)
    inner = [L.Conv2D(4, 1, activation="relu", name=f"inner_{bits}") for bits in range(1, 9)]
    return chain(
        (6, 6, 3),
        L.Conv2D(4, 3, activation="relu", name="stem"),
        *inner,
        L.Flatten(),
        L.Dense(3, name="classifier"),
    )


def _of_three() -> keras.Model:
    keras.utils.set_random_seed(5)
    return chain(
        (6, 6, 3),
        L.Conv2D(4, 3, activation="relu", name="stem"),
        L.Conv2D(4, 3, activation="relu", name="inner"),
        L.Flatten(),
        L.Dense(3, name="classifier"),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("preset", _PRESETS)
@pytest.mark.parametrize("grid", GRID_NAMES)
@pytest.mark.parametrize("weight_range", ["layer", "channel"])
@pytest.mark.filterwarnings("ignore:weight_grid=")  # grids that train badly
def test_layers_of_all_bits_are_exported_exactly_on_every_grid(grid, preset, weight_range, path):
    bits = {f"inner_{bits}": {"weight_bits": bits} for bits in range(1, 9)}
    if grid in GRIDS and GRIDS[grid].fewest_bits > 1:
        bits["inner_1"] = {"weight_bits": 1, "weight_grid": "dorefa"}
    fields = {"first_last_weight_grid": "auto"} if preset == "paper" else {}
    policy = _PRESETS[preset](
        4, weight_grid=grid, weight_range=weight_range, overrides=bits, **fields
    )
    proved(calibrated(_of_all_bits(), policy), path)


@pytest.mark.parametrize(("bits", "grid"), [(2, "rounded"), (4, "dorefa"), (3, "modified")])
@pytest.mark.filterwarnings("ignore:weight_grid='modified' rounds")
def test_first_and_last_layers_are_on_a_grid_that_fits(bits, grid, path):
    policy = BitPolicy.mobile(bits, weight_grid=grid)
    proved(calibrated(_of_three(), policy), path)
    plan = sat_tf.explain(_of_three(), policy)
    assert plan.export_problems == ()
    kernels = {row.name: row.weights for row in plan.rows if row.weights}
    assert {name: (kernel.bits, kernel.grid) for name, kernel in kernels.items()} == {
        "stem": (8, "narrow"),
        "inner": (bits, grid),
        "classifier": (8, "narrow"),
    }
    assert f"{grid} does not fit int8" in kernels["stem"].bits_reason
    assert kernels["inner"].bits_reason == ""


def test_a_model_for_training_alone_says_which_layers_keep_it_from_being_exported(tmp_path):
    with pytest.warns(UserWarning, match="not exported"):
        policy = BitPolicy.paper(4, weight_grid="dorefa")
    with pytest.warns(
        UserWarning, match=r"not exported.*: .*stem \(8 bits, dorefa\), classifier \(8 bits"
    ):
        quantized = sat_tf.quantize_model(_of_three(), policy)
    wrappers = [layer for layer in quantized.layers if isinstance(layer, QuantizedLayer)]
    kernels = [wrapper.quantize_config.weights for wrapper in wrappers]
    assert [kernel.grid for kernel in kernels if kernel] == ["dorefa"] * 3
    with pytest.raises(ValueError, match="weight_grid='auto' or 'narrow'"):
        sat_tf.export_tflite(quantized, tmp_path / "model.tflite")


def test_a_layer_s_own_8_bits_fall_back_when_only_bits_are_asked_of_it(tmp_path):
    policy = BitPolicy.mobile(2, weight_grid="rounded", overrides={"inner": {"weight_bits": 8}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated below
        quantized = sat_tf.quantize_model(_of_three(), policy)
    again = sat_tf.requantize(quantized, BitPolicy.mobile(4, weight_grid="dorefa"))
    for model in (quantized, again):
        sat_tf.calibrate(model, images_for(model))
        sat_tf.export_tflite(model, tmp_path / "model.tflite")
