"""How far the float32 arithmetic is from float64, for every width and grid: one row each.

`python -m tests.core.test_accuracy` prints the table.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from sat_tf.core import dorefa, pact
from tests import reference

_LEVEL = float(np.float32(2.7))


@dataclasses.dataclass(frozen=True)
class Row:
    """Largest errors over one draw of weights and one of activations.

    Attributes:
        bits: bits of the codes.
        grid: "dorefa" (unsigned activations) or "narrow" (signed ones).
        weights: of quantized weights that have the code of the reference, which lie in [-1, 1].
        weight_gradient: of the gradient of the latent weights, in units of its largest magnitude.
        activations: as for weights, in units of the clipping level.
        level_gradient: of the gradient of the clipping level, in units of Σ |upstream|.
        differing_codes: codes unlike those of the reference, all of them at ties.
        from_tie: the largest distance from a tie at which that happened, in codes.
    """

    bits: int
    grid: str
    weights: float
    weight_gradient: float
    activations: float
    level_gradient: float
    differing_codes: int
    from_tie: float


def measure(bits: int, grid: str, size: int = 2**18) -> Row:
    """Compares the package with the float64 reference on `size` weights and activations."""
    draw = np.random.default_rng(bits)
    latent = draw.normal(0, 0.5, (size // 64, 64)).astype(np.float32)
    x = draw.normal(0, 2.0, (size // 64, 64)).astype(np.float32)
    upstream = draw.normal(size=x.shape).astype(np.float32)

    with tf.GradientTape() as tape:
        variable = tf.Variable(latent)
        weights = dorefa.quantize_weights(variable, bits, grid)
    weight_gradient = tape.gradient(weights, variable, upstream)
    weights = weights.numpy().astype(np.float64)
    expected = reference.quantize_weights(latent, bits, grid)
    divisor = reference.GRIDS[grid][0](bits)
    other_weight = np.abs(weights - expected) > 0.5 / divisor
    position = reference.weight_position(latent, bits, grid)
    expected_gradient = reference.clamp_gradient(latent, upstream)

    signed = grid == "narrow"
    quantize = pact.quantize_stream if signed else pact.quantize_activation
    with tf.GradientTape() as tape:
        level = tf.Variable(_LEVEL)
        activations = quantize(x, level, bits)
    level_gradient = tape.gradient(activations, level, upstream)
    activations = activations.numpy().astype(np.float64)
    if signed:
        expected_activations = reference.quantize_stream(x, _LEVEL, bits)
        _, expected_level = reference.stream_gradients(x, _LEVEL, bits, upstream)
        activation_position = reference.stream_position(x, _LEVEL, bits)
    else:
        expected_activations = reference.quantize_activation(x, _LEVEL, bits)
        _, expected_level = reference.activation_gradients(x, _LEVEL, bits, upstream)
        activation_position = reference.activation_position(x, _LEVEL, bits)
    other_activation = np.abs(activations - expected_activations) > 0.5 * _LEVEL / divisor

    distances = np.concatenate(
        [
            reference.distance_from_tie(position, grid)[other_weight],
            reference.distance_from_tie(activation_position, grid)[other_activation],
        ]
    )
    return Row(
        bits=bits,
        grid=grid,
        weights=np.abs(weights - expected)[~other_weight].max(),
        weight_gradient=np.abs(weight_gradient - expected_gradient).max()
        / np.abs(expected_gradient).max(),
        activations=np.abs(activations - expected_activations)[~other_activation].max() / _LEVEL,
        level_gradient=abs(float(level_gradient) - expected_level) / np.abs(upstream).sum(),
        differing_codes=int(other_weight.sum() + other_activation.sum()),
        from_tie=float(distances.max(initial=0.0)),
    )


def measure_all(size: int = 2**18) -> list[Row]:
    """Rows for bits 1 to 8 on the DoReFa grid, and 2 to 8 on the narrow one."""
    rows = [("dorefa", bits) for bits in range(1, 9)] + [("narrow", bits) for bits in range(2, 9)]
    return [measure(bits, grid, size) for grid, bits in rows]


def table(rows: list[Row]) -> str:
    """The rows as text, one a line."""
    lines = ["bits grid    weights   weight grad  activations  level grad  other codes  from tie"]
    lines += [
        f"{row.bits:4} {row.grid:6}  {row.weights:.1e}  {row.weight_gradient:11.1e}  "
        f"{row.activations:11.1e}  {row.level_gradient:10.1e}  {row.differing_codes:11}  "
        f"{row.from_tie:8.1e}"
        for row in rows
    ]
    return "\n".join(lines)


# Half a unit in the last place of 1 in float32.
EPSILON = 2.0**-24


def test_float32_is_within_a_few_last_places_of_float64():
    rows = measure_all(size=2**16)
    print("\n" + table(rows))  # shown by pytest -s
    assert [row.bits for row in rows] == [*range(1, 9), *range(2, 9)]
    for row in rows:
        # A subtraction and a product with a rounded constant.
        assert row.weights <= 2 * EPSILON, row
        # The step and its product with the code, each rounded.
        assert row.activations <= 3 * EPSILON, row
        # At the largest weight the slope 1 - t² is a twentieth, so it has 40 times the relative
        # error of t, which is off by a unit or two.
        assert row.weight_gradient <= 100 * EPSILON, row
        # A sum of 2^16 products.
        assert row.level_gradient <= 4 * EPSILON, row
        # At ties only: nearer than the rounding of a position, which is below 256.
        assert row.from_tie <= 256 * 4 * EPSILON, row
        assert row.differing_codes <= 2**17 * 256 * 8 * EPSILON, row


if __name__ == "__main__":
    print(table(measure_all()))
