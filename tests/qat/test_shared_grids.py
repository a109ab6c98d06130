import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.qat.shared_grids import CoarseValuesWarning

L = keras.layers
NUMBERS = np.random.default_rng(7).normal(size=(64, 8)).astype(np.float32)


def _calibrated(model, values=NUMBERS, bits=8):
    keras.utils.set_random_seed(7)
    policy = sat_tf.BitPolicy.mobile(bits, input_type="int8")
    return sat_tf.calibrate(sat_tf.quantize_model(model, policy), values, progress=False)


def _with_two_parts(larger):
    keras.utils.set_random_seed(7)
    read = keras.Input((8,), name="read")
    big, small = L.Dense(8, name="big"), L.Dense(8, name="small")
    joined = L.Concatenate(name="joined")([big(read), small(read)])
    model = keras.Model(read, L.Dense(2, name="classifier")(joined))
    big.kernel.assign(big.kernel * larger)
    return model


@pytest.mark.filterwarnings("ignore::sat_tf.qat.layout.GuessedClippingLevelsWarning")
class TestCoarseValues:
    def test_a_part_of_a_concatenation_that_is_left_few_codes_is_named_with_their_number(self):
        with pytest.warns(CoarseValuesWarning, match=r"parts of joined: 1 of 2 .*\(small: 1\)"):
            _calibrated(_with_two_parts(1000.0))

    @pytest.mark.parametrize("bits", [2, 4, 8])
    def test_parts_of_like_size_are_not_warned_of(self, bits, recwarn):
        _calibrated(_with_two_parts(1.0), bits=bits)
        assert not [one for one in recwarn if one.category is CoarseValuesWarning]

    def test_two_inputs_that_are_concatenated_are_parts_of_one_grid(self):
        one, other = keras.Input((8,), name="one"), keras.Input((8,), name="other")
        outputs = L.Dense(2)(L.Concatenate(name="joined")([one, other]))
        with pytest.warns(CoarseValuesWarning, match=r"parts of joined: .*\(other: 1\)"):
            _calibrated(keras.Model([one, other], outputs), [1000.0 * NUMBERS, NUMBERS])

    def test_channels_of_an_output_that_are_left_few_codes_are_named(self):
        model = keras.Sequential([keras.Input((8,)), L.Dense(3, name="head")])
        kernel = model.get_layer("head").kernel
        kernel.assign(kernel * np.float32([1000.0, 1.0, 500.0]))
        with pytest.warns(CoarseValuesWarning, match=r"the output head: 1 of 3 .*\(1: 1\)"):
            _calibrated(model)
