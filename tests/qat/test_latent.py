import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.qat import latent
from tests import reference

KERNELS = hnp.arrays(np.float64, (2, 3, 4), elements=st.floats(-1e3, 1e3))


@given(kernel=KERNELS, axes=st.sampled_from([(), (2,), (1, 2), (-1,)]))
def test_the_clamped_latent_kernel_is_the_kernel_divided_by_its_maximum(kernel, axes):
    weights, maximum = latent.latent_kernel(kernel, axes)
    assert np.abs(weights).max() <= np.arctanh(0.9)
    assert (maximum > 0).all()
    clamped = reference.clamp(weights, axes)
    np.testing.assert_allclose(clamped * maximum, kernel, atol=1e-12 * max(1, np.abs(kernel).max()))


@pytest.mark.parametrize("maximum", [1e-6, 0.01, 0.3, 0.9])
def test_a_kernel_enters_with_its_own_size_and_gradient(maximum):
    kernel = maximum * np.array([[0.5, -1.0], [0.25, 0.0]])
    weights, m = latent.latent_kernel(kernel)
    np.testing.assert_allclose(weights, np.arctanh(kernel), rtol=1e-12)
    # d(m tanh(W) / max|tanh|) / dW, the maximum held: the kernel's own gradient at its middle.
    np.testing.assert_allclose(m * (1.0 - np.tanh(weights) ** 2) / maximum, 1.0 - kernel**2)


@pytest.mark.parametrize("maximum", [0.91, 1.0, 40.0])
def test_no_kernel_enters_where_tanh_is_flat(maximum):
    weights, _ = latent.latent_kernel(maximum * np.array([[0.5, -1.0]]))
    np.testing.assert_allclose(np.tanh(weights), [[0.45, -0.9]], rtol=1e-12)


def test_a_range_of_zeros_stays_zero():
    weights, maximum = latent.latent_kernel(np.array([[0.0, 2.0], [0.0, -4.0]]), (1,))
    assert weights[:, 0].tolist() == [0.0, 0.0]
    assert maximum.tolist() == [[1.0, 4.0]]


def _normalize(norm, x):
    return norm.gamma * (x - norm.mean) / np.sqrt(norm.variance + norm.epsilon)


@pytest.mark.parametrize("divisor", [0.01, 1.0, 3.0, 1000.0])
@pytest.mark.parametrize("variance", [0.0, 1e-6, 1e-3, 4.0])
@pytest.mark.parametrize("gamma", [-1.5, 0.0, 2.0])
def test_divided_statistics_give_the_old_output(divisor, variance, gamma):
    norm = latent.NormStatistics(
        gamma=np.array([gamma]),
        mean=np.array([0.7]),
        variance=np.array([variance]),
        epsilon=1e-3,
    )
    divided = latent.divided_statistics(norm, np.array([divisor]))
    assert (divided.variance >= 0.0).all()  # even where the float32 maximum is large
    x = np.linspace(-5, 5, 11)
    np.testing.assert_allclose(
        _normalize(divided, x / divisor), _normalize(norm, x), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("divisor", [0.01, 0.3, 1.0, 5.0])
def test_on_batch_statistics_the_divided_input_gives_the_old_output_too(divisor):
    x = np.random.default_rng(0).normal(0.3, 0.02, 1000)  # of a variance less than ε
    norm = latent.NormStatistics(
        gamma=np.array([1.5]), mean=np.mean(x), variance=np.var(x), epsilon=1e-3
    )
    divided = latent.divided_statistics(norm, np.array([divisor]))
    np.testing.assert_allclose(divided.mean, np.mean(x / divisor))
    np.testing.assert_allclose(divided.variance, np.var(x / divisor), rtol=1e-9)
    np.testing.assert_allclose(divided.gamma, norm.gamma)
