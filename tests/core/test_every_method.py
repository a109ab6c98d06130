"""Facts that hold for every method: types, numbers of bits, and weights that are not finite."""

import numpy as np
import pytest

from sat_tf.core import asymmetric, dorefa, l1, lsq
from sat_tf.quantizers.methods import kmeans, lq_nets, qil
from tests.core.execution import NO_CODE, array, draw, tensor, value_and_gradients

BASIS = np.float32([[0.2, 0.4]])


def _ids(w):
    return np.arange(np.prod(tuple(w.shape))).reshape(tuple(w.shape)) % 2


FUNCTIONS = {
    "dorefa": lambda w, bits=4: dorefa.quantize_weights(w, bits),
    "l1": lambda w, bits=4: l1.quantize_weights(w, bits),
    "kmeans": lambda w, bits=1: kmeans.quantize_weights(w, _ids(w), bits),
    "lq_nets": lambda w: lq_nets.quantize_weights(w, BASIS),
    "first_basis": lq_nets.first_basis,
    "levels": lambda w, bits: lq_nets.levels(np.zeros((1, bits), np.float32)),
    "lsq": lambda w, bits=4: lsq.quantize_weights(w, 1.0, bits),
    "lsq_plus": lambda x, bits=4: lsq.quantize_with_offset(x, 1.0, -0.3, bits),
    "qil": lambda w, bits=4: qil.quantize_weights(w, 1.0, 1.0, bits),
    "offset": lambda x, bits=4: asymmetric.quantize_offset(x, 2.0, bits, lowest=-0.3),
}
CODES = {
    "dorefa": lambda w: dorefa.weight_codes(w, 4),
    "l1": lambda w: l1.weight_codes(w, 4),
    "kmeans": lambda w: kmeans.weight_codes(w, _ids(w), 1),
    "lq_nets": lambda w: lq_nets.weight_codes(w, BASIS),
    "lsq": lambda w: lsq.weight_codes(w, 0.5, 4),
    "qil": lambda w: qil.weight_codes(w, 0.3, 0.2, 4),
}
# Functions of weights and of what they learn beside them.
LEARNING = {
    "l1": (l1.quantize_weights, []),
    "lsq": (lsq.quantize_weights, [0.7]),
    "qil": (qil.quantize_weights, [0.4, 0.3]),
}
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0.3, -0.2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if name not in ("first_basis", "levels")]
)
def test_it_returns_the_type_it_got(name, dtype):
    given = tensor(np.ones(3), dtype)
    assert FUNCTIONS[name](given).dtype == given.dtype


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("name", LEARNING)
def test_bits_may_be_a_tensor(name, bits):
    if name != "l1" and bits == 1:
        pytest.skip("there is no such method")
    function, learnt = LEARNING[name]
    settings = {"grid": "dorefa"} if name == "l1" else {}
    fixed, free = (
        value_and_gradients(
            lambda *tensors, number=number: function(*tensors, number, **settings),
            [draw(), *map(np.float32, learnt)],
            draw(seed=1),
        )
        for number in (bits, tensor(bits))
    )
    for one, other in zip(fixed, free, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5 if name == "qil" else 1e-6)


@pytest.mark.parametrize("surrogate", ["ste", "ewgs", "dsq"])
@pytest.mark.parametrize("name", LEARNING)
def test_what_is_not_finite_harms_nothing_else(name, surrogate):
    function, learnt = LEARNING[name]
    value, *gradients = value_and_gradients(
        lambda *tensors: function(*tensors, 4, surrogate=surrogate),
        [SPECIAL, *map(np.float32, learnt)],
    )
    assert np.isnan(value[0])
    for found in (value[1:], *gradients):
        assert np.isfinite(found).all()


@pytest.mark.parametrize("name", CODES)
def test_nan_has_no_code(name):
    with pytest.raises(NO_CODE, match="NaN has no integer code"):
        array(CODES[name](SPECIAL))
