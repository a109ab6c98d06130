import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.quantizers import dorefa
from tests import reference

KERNELS = hnp.arrays(np.float64, (2, 3, 4), elements=st.floats(-1e3, 1e3))


@given(kernel=KERNELS, axes=st.sampled_from([(), (2,), (1, 2), (-1,)]))
def test_the_clamped_latent_kernel_is_the_kernel_divided_by_its_maximum(kernel, axes):
    weights, maximum = dorefa.latent_kernel(kernel, axes)
    assert np.abs(weights).max() <= np.arctanh(0.9)
    assert (maximum > 0).all()
    clamped = reference.clamp(weights, axes)
    np.testing.assert_allclose(clamped * maximum, kernel, atol=1e-12 * max(1, np.abs(kernel).max()))


@pytest.mark.parametrize("maximum", [1e-6, 0.01, 0.3, 0.9])
def test_a_kernel_enters_with_its_own_size_and_gradient(maximum):
    kernel = maximum * np.array([[0.5, -1.0], [0.25, 0.0]])
    weights, m = dorefa.latent_kernel(kernel)
    np.testing.assert_allclose(weights, np.arctanh(kernel), rtol=1e-12)
    # d(m tanh(W) / max|tanh|) / dW, the maximum held: the kernel's own gradient at its middle.
    np.testing.assert_allclose(m * (1.0 - np.tanh(weights) ** 2) / maximum, 1.0 - kernel**2)


@pytest.mark.parametrize("maximum", [0.91, 1.0, 40.0])
def test_no_kernel_enters_where_tanh_is_flat(maximum):
    weights, _ = dorefa.latent_kernel(maximum * np.array([[0.5, -1.0]]))
    np.testing.assert_allclose(np.tanh(weights), [[0.45, -0.9]], rtol=1e-12)


def test_a_range_of_zeros_stays_zero():
    weights, maximum = dorefa.latent_kernel(np.array([[0.0, 2.0], [0.0, -4.0]]), (1,))
    assert weights[:, 0].tolist() == [0.0, 0.0]
    assert maximum.tolist() == [[1.0, 4.0]]
