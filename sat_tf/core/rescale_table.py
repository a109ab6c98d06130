"""The rescalings of quantized weights, by name. Needs no TensorFlow.

constant   c = 1 / sqrt(n̂ mean(Q²))           (Eq. 7 and 10)
stddev     c = sqrt(mean(W²) / mean(Q²))      (Eq. S23)
none       c = 1
"""

from sat_tf.messages import did_you_mean

METHODS = ("constant", "stddev", "none")
# In the place of the sum of the squares of weights that are all 0.
SMALLEST_SQUARE = 2.0**-126


def check_rescale(method: str, fan_out: int, *, has_latent: bool) -> None:
    """Raises ValueError unless there is such a rescaling, and what it needs is given.

    Args:
        method: a name of `METHODS`.
        fan_out: the layer's n̂.
        has_latent: whether the latent weights W are given.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is no rescaling. {did_you_mean(str(method), METHODS)}")
    if method == "none":
        return
    if fan_out < 1:
        raise ValueError(f"fan_out={fan_out!r}: expected the layer's number of output neurons.")
    if method == "stddev" and not has_latent:
        raise ValueError(
            "method='stddev' compares with the latent weights: pass latent=..., "
            "or use method='constant'."
        )
