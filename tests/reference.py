"""The mathematics of the quantizers in float64 NumPy, written from the formulas alone.

It imports nothing of the package: it is a witness, not a user. Every function says which equation
of the paper it computes. Rounding is floor(x + 1/2), ties upwards.
"""

import itertools
import math

import numpy as np

# Per grid: steps in the unit interval, largest integer n, what is added before the floor, and how
# many codes lie between n and n + 1. "nested" alone stands for the middle of what is rounded to n.
GRIDS = {
    "dorefa": (lambda b: 2**b - 1, lambda b: 2**b - 1, 0.5, 2),
    "narrow": (lambda b: 2**b - 2, lambda b: 2**b - 2, 0.5, 1),
    "rounded": (lambda b: 2**b, lambda b: 2**b - 1, 0.5, 1),
    "modified": (lambda b: 2**b, lambda b: 2**b - 1, 0.0, 1),
    "nested": (lambda b: 2**b, lambda b: 2**b - 1, 0.0, 2),
}


def round_half_up(x):
    return np.floor(np.asarray(x, np.float64) + 0.5)


# -- weights -----------------------------------------------------------------------------------


def clamp(latent, range_axes=()):
    """Eq. 5 and 6: tanh(W) / max|tanh(W)|."""
    squashed, maximum, _ = _squash(latent, range_axes)
    return squashed / maximum


def clamp_gradient(latent, upstream, detach_max=False, range_axes=()):
    """Gradient of Σ upstream · clamp(latent).

    With t = tanh(W) and m = max|t| = |t_k|:  dŴ_i/dt_j = [i = j]/m - [j = k] sign(t_k) t_i/m². Ties
    for the maximum share its gradient.
    """
    squashed, maximum, axes = _squash(latent, range_axes)
    gradient = upstream / maximum
    if not detach_max:
        holds = (np.abs(squashed) == maximum) & (squashed != 0.0)
        ties = np.maximum(np.sum(holds, axis=axes, keepdims=True), 1)
        towards = -np.sum(upstream * squashed, axis=axes, keepdims=True) / maximum**2
        gradient = gradient + np.where(holds, np.sign(squashed) * towards / ties, 0.0)
    return gradient * (1.0 - squashed**2)


def weight_position(latent, bits, grid, range_axes=()):
    """The places of clamped weights between the integers of a grid, before rounding."""
    divisor, _, _, _ = GRIDS[grid]
    return divisor(bits) * (clamp(latent, range_axes) + 1.0) / 2.0


def weight_units(latent, bits, grid, range_axes=()):
    """The integers n = 0..top, or the middle of what is rounded to each."""
    _, top, offset, _ = GRIDS[grid]
    position = weight_position(latent, bits, grid, range_axes)
    return np.clip(np.floor(position + offset), 0, top(bits)) + (grid == "nested") / 2


def quantize_weights(latent, bits, grid, range_axes=()):
    """Eq. 9: Q = 2 n / divisor - 1."""
    divisor, _, _, _ = GRIDS[grid]
    return 2.0 * weight_units(latent, bits, grid, range_axes) / divisor(bits) - 1.0


def weight_codes(latent, bits, grid, range_axes=()):
    """The smallest integers proportional to the quantized weights."""
    divisor, _, _, per_unit = GRIDS[grid]
    units = weight_units(latent, bits, grid, range_axes)
    return np.asarray(per_unit * (units - divisor(bits) / 2.0), np.int64)


def distance_from_tie(position, grid):
    """How far a position is from where the rounding jumps, in integers."""
    _, _, offset, _ = GRIDS[grid]
    shifted = position + offset
    return np.abs(shifted - np.round(shifted))


def _squash(latent, range_axes):
    squashed = np.tanh(np.asarray(latent, np.float64))
    keep = {axis % squashed.ndim for axis in range_axes}
    axes = tuple(axis for axis in range(squashed.ndim) if axis not in keep)
    maximum = np.max(np.abs(squashed), axis=axes, keepdims=True)
    return squashed, np.where(maximum > 0.0, maximum, 1.0), axes


# -- rescaling ---------------------------------------------------------------------------------


def rescale_factor(weights, n, method="constant", latent=None):
    """Eq. 7 and 10, 1/sqrt(n̂ mean(Q²)), or Eq. S23, sqrt(mean(W²)/mean(Q²))."""
    mean_square = float(np.mean(np.square(np.asarray(weights, np.float64))))
    if method == "none" or mean_square == 0.0:
        return 1.0
    if method == "constant":
        return 1.0 / math.sqrt(n * mean_square)
    return math.sqrt(float(np.mean(np.square(np.asarray(latent, np.float64)))) / mean_square)


# -- activations -------------------------------------------------------------------------------


def quantize_activation(x, level, bits):
    """Eq. 11 and 12: α round(a clip(x, 0, α) / α) / a, a = 2^b - 1."""
    steps = 2**bits - 1
    clipped = np.clip(np.asarray(x, np.float64), 0.0, level)
    return level * round_half_up(steps * clipped / level) / steps


def activation_gradients(x, level, bits, upstream, gradient="calibrated"):
    """dx by the straight-through estimator, and dα by Eq. 13 (or 0 below α, the original PACT)."""
    x = np.asarray(x, np.float64)
    inside = (x > 0.0) & (x < level)
    slope = np.where(x >= level, 1.0, 0.0)
    if gradient == "calibrated":
        error = quantize_activation(x, level, bits) - np.where(inside, x, 0.0)
        slope = np.where(inside, error / level, slope)
    return np.where(inside, upstream, 0.0), float(np.sum(upstream * slope))


def activation_position(x, level, bits):
    """The places of clipped activations between the codes, before rounding."""
    return (2**bits - 1) * np.clip(np.asarray(x, np.float64), 0.0, level) / level


def quantize_stream(x, level, bits):
    """The signed form: 2r/a · round(a clip(x, -r, r) / 2r), a = 2^b - 2."""
    step = 2.0 * level / (2**bits - 2)
    return step * round_half_up(np.clip(np.asarray(x, np.float64), -level, level) / step)


def stream_gradients(x, level, bits, upstream, gradient="calibrated"):
    """dx, and dr: 1 and -1 where clipped, between them (q - x)/r, or 0 in the original PACT."""
    x = np.asarray(x, np.float64)
    inside = np.abs(x) < level
    slope = np.where(inside, 0.0, np.sign(x))
    if gradient == "calibrated":
        error = quantize_stream(x, level, bits) - np.where(inside, x, 0.0)
        slope = np.where(inside, error / level, slope)
    return np.where(inside, upstream, 0.0), float(np.sum(upstream * slope))


def stream_position(x, level, bits):
    """The places of clipped values between the codes, before rounding."""
    return np.clip(np.asarray(x, np.float64), -level, level) * (2**bits - 2) / (2.0 * level)


def offset_grid(level, bits, lowest, share):
    """LSQ+ with a known offset: the step ((1 + ρ) α + ℓ) / a, and round((ℓ + ρ α) / step)."""
    step = ((1.0 + share) * level - lowest) / (2**bits - 1)
    # A range that needs two codes and a half, as a slope of 0.2 does at 4 bits, has three.
    return step, float(round_half_up((share * level - lowest) / step + 2.0**-10))


def quantize_offset(x, level, bits, lowest, share):
    """s · clip(round(x / s), -z, a - z)."""
    step, zero = offset_grid(level, bits, lowest, share)
    codes = round_half_up(np.asarray(x, np.float64) / step)
    return step * np.clip(codes, -zero, 2**bits - 1 - zero)


def offset_gradients(x, level, bits, upstream, lowest, share, gradient="calibrated"):
    """dx, and dα = (1 + ρ)/a · ds: the code where clipped, else (q - x)/s, or 0 ("pact")."""
    x = np.asarray(x, np.float64)
    step, zero = offset_grid(level, bits, lowest, share)
    quantized = quantize_offset(x, level, bits, lowest, share)
    inside = (x > -zero * step) & (x < (2**bits - 1 - zero) * step)
    between = (quantized - x) / step if gradient == "calibrated" else np.zeros_like(x)
    slope = np.where(inside, between, quantized / step)
    by_level = float(np.sum(upstream * slope)) * (1.0 + share) / (2**bits - 1)
    return np.where(inside, upstream, 0.0), by_level


def skewed_grid(level, bits, skew):
    """The step, and the lowest and the highest code, of a range whose larger end is a level."""
    if skew == 0.0:
        highest = 2 ** (bits - 1) - 1
        return level / highest, -highest, highest
    smaller = (1.0 - abs(skew)) * level
    below, above = (smaller, level) if skew > 0.0 else (level, smaller)
    step = (below + above) / (2**bits - 1)
    # Half a code counts as one; see `offset_grid`.
    zero = int(round_half_up(below / step + 2.0**-10))
    return step, -zero, 2**bits - 1 - zero


def quantize_skewed(x, level, bits, skew):
    """The nearest code of the grid times the step."""
    step, lowest, highest = skewed_grid(level, bits, skew)
    return step * np.clip(round_half_up(np.asarray(x, np.float64) / step), lowest, highest)


def skewed_gradients(x, level, bits, upstream, skew, gradient="calibrated"):
    """dx, dα and dκ, by the gradient of each end: Eq. 13, with the other end held."""
    x = np.asarray(x, np.float64)
    step, lowest, highest = skewed_grid(level, bits, skew)
    quantized = quantize_skewed(x, level, bits, skew)
    at_top, at_bottom = x >= highest * step, x <= lowest * step
    inside = ~at_top & ~at_bottom
    error = np.where(inside, quantized - x, 0.0) if gradient == "calibrated" else 0.0 * x
    width = (highest - lowest) * step
    by_high = np.sum(upstream * (at_top + error / width))
    by_low = np.sum(upstream * (at_bottom - error / width))
    # α moves both ends in proportion; κ moves the smaller one.
    by_level = np.sum(upstream * np.where(inside, error, quantized)) / level
    by_skew = level * (by_low if skew > 0.0 else by_high) if skew else 0.0
    return np.where(inside, upstream, 0.0), float(by_level), float(by_skew)


# -- surrogates of the rounding ----------------------------------------------------------------

STRENGTHS = {"ste": None, "ewgs": 1e-3, "dsq": 0.2}


def passed_back(upstream, error, intervals, surrogate, strength=None):
    """EWGS: g (1 + δ sign(g) (x_n - x_q)). DSQ: g times the slope of its soft staircase."""
    if surrogate == "ste":
        return upstream
    strength = STRENGTHS[surrogate] if strength is None else strength
    if surrogate == "ewgs":
        return upstream * (1.0 + strength * np.sign(upstream) * error / intervals)
    # φ(x) = s tanh(k (x - m)) with m half-way between two codes; the staircase is (φ + 1) / 2.
    s, k = 1.0 / (1.0 - strength), math.log(2.0 / strength - 1.0)
    error = np.clip(error, -0.5, 0.5)
    to_middle = np.where(error >= 0.0, error - 0.5, error + 0.5)
    return upstream * s * k / (2.0 * np.cosh(k * to_middle) ** 2)


def soft_gradients(x, low, high, intervals, upstream, surrogate, strength, gradient):
    """dx and the gradient of `high` (`low` is 0 or -high), where rounding has a surrogate.

    Inside y = s R(x / s) with R' = f: dy/dx = f and dy/ds = R - f x / s. Outside y is an end.
    """
    x = np.asarray(x, np.float64)
    step = (high - low) / intervals
    inside = (x > low) & (x < high)
    codes = round_half_up(np.clip(x, low, high) / step)
    passed = np.where(
        inside, passed_back(upstream, x / step - codes, intervals, surrogate, strength), 0
    )
    slope = upstream * codes
    if gradient == "calibrated":
        slope = np.where(inside, upstream * codes - passed * x / step, slope)
    else:
        slope = np.where(inside, 0.0, slope)
    return passed, float(np.sum(slope)) * step / high


# -- QIL ---------------------------------------------------------------------------------------


def qil_position(w, c, d):
    """α |w| + β with α = 1 / 2d and β = 1/2 - c / 2d (Jung et al., Eq. 3)."""
    alpha = 1.0 / (2.0 * np.asarray(d, np.float64))
    return alpha * np.abs(np.asarray(w, np.float64)) + 0.5 - alpha * c


def qil_quantize(w, c, d, bits):
    """The transformer and the discretizer for γ = 1 (Eq. 3 and 5), times c + d."""
    highest = 2 ** (bits - 1) - 1
    transformed = np.sign(w) * np.clip(qil_position(w, c, d), 0.0, 1.0)
    rounded = np.sign(transformed) * round_half_up(np.abs(transformed) * highest)
    return (np.asarray(c, np.float64) + d) * rounded / highest


def qil_gradients(w, c, d, bits, upstream, surrogate="ste", strength=None):
    """dw, and what each weight adds to dc and dd, of an end c + d that is a constant."""
    highest = 2 ** (bits - 1) - 1
    position = qil_position(w, c, d)
    inside = (position > 0.0) & (position < 1.0)
    error = np.sign(w) * (position * highest - round_half_up(position * highest))
    passed = passed_back(upstream, error, 2 * highest, surrogate, strength)
    passed = np.where(inside, passed * (np.asarray(c, np.float64) + d), 0.0)
    c, d = np.float64(c), np.float64(d)
    by_position = passed * np.sign(w)
    return passed / (2 * d), -by_position / (2 * d), -by_position * (np.abs(w) - c) / (2 * d**2)


# -- LSQ and LSQ+ ------------------------------------------------------------------------------


def lsq_ends(bits):
    """-Qn and Qp of signed weights; at 8 bits without -128."""
    return -(2 ** (bits - 1)) + (bits == 8), 2 ** (bits - 1) - 1


def lsq_quantize(v, s, low, high):
    """Esser et al., Eq. 1 and 2: s · clip(round(v / s))."""
    return s * np.clip(round_half_up(np.asarray(v, np.float64) / s), low, high)


def lsq_gradients(v, s, low, high, upstream, surrogate="ste", strength=None):
    """dv, and upstream · dvhat/ds of each element (Eq. 3 and 5), before the factor g."""
    units = np.asarray(v, np.float64) / s
    codes = np.clip(round_half_up(units), low, high)
    inside = (units > low) & (units < high)
    passed = passed_back(upstream, units - codes, high - low, surrogate, strength)
    return (
        np.where(inside, passed, 0.0),
        np.where(inside, upstream * codes - passed * units, upstream * codes),
    )


def lsq_factor(count, high):
    """g = 1 / sqrt(N Qp)."""
    return 1.0 / math.sqrt(count * high)


def lsq_plus_grid(s, beta, bits):
    """The codes below zero: round(-β / s), within the codes there are."""
    return float(np.clip(round_half_up(np.asarray(-beta / s + 2.0**-10)), 0, 2**bits - 1))


def lsq_plus_gradients(x, s, beta, bits, upstream):
    """dx, ds and dβ of Bhalgat et al., Eq. 5 to 7, with an integer for -β / s."""
    zero, top = lsq_plus_grid(s, beta, bits), 2**bits - 1
    units = np.asarray(x, np.float64) / s
    below, above = units <= -zero, units >= top - zero
    inside = ~below & ~above
    slope = np.where(inside, round_half_up(units) - units, np.where(above, top, 0.0))
    return (
        np.where(inside, upstream, 0.0),
        float(np.sum(upstream * slope)),
        float(np.sum(np.where(inside, 0.0, upstream))),
    )


# -- N2UQ's weights ----------------------------------------------------------------------------


def l1_size(w, bits, range_axes=()):
    """(2^b - 1) / 2^(b-1) · mean|w| of each range."""
    keep = {axis % w.ndim for axis in range_axes}
    axes = tuple(axis for axis in range(w.ndim) if axis not in keep)
    means = np.mean(np.abs(np.asarray(w, np.float64)), axis=axes, keepdims=True)
    return np.asarray((2**bits - 1) / 2 ** (bits - 1) * means)


def l1_position(w, bits, grid, range_axes=()):
    """The places of clipped weights between the integers of a grid, before rounding."""
    clipped = np.clip(np.asarray(w, np.float64) / l1_size(w, bits, range_axes), -1.0, 1.0)
    return GRIDS[grid][0](bits) * (clipped + 1.0) / 2.0


def l1_quantize(w, bits, grid, range_axes=()):
    """c (round(([w/c] + 1) a / 2) 2 / a - 1), as the authors' code has it on DoReFa's grid."""
    divisor, top, offset, _ = GRIDS[grid]
    units = np.clip(np.floor(l1_position(w, bits, grid, range_axes) + offset), 0, top(bits))
    units += (grid == "nested") / 2
    return l1_size(w, bits, range_axes) * (2.0 * units / divisor(bits) - 1.0)


def channel_bits(w, lowest, highest, mean, grid, range_axes):
    """Σ (q - w)² of each channel at each number of bits, and the least sum with that mean.

    By trying, channel after channel, every number of bits with every sum of those before.
    """
    keep = {axis % w.ndim for axis in range_axes}
    inner = tuple(axis for axis in range(w.ndim) if axis not in keep)
    rows = [
        np.sum((l1_quantize(w, bits, own, range_axes) - w) ** 2, axis=inner).ravel()
        for bits in range(lowest, highest + 1)
        for own in [("narrow" if bits == 8 else "dorefa") if grid == "auto" else grid]
    ]
    errors = np.transpose(rows).tolist()
    least = {0: 0.0}
    for of_channel in errors:
        tried: dict[int, float] = {}
        for spent, error in least.items():
            for more, own_error in enumerate(of_channel):
                total = error + own_error
                tried[spent + more] = min(total, tried.get(spent + more, math.inf))
        least = tried
    return errors, least[len(errors) * (mean - lowest)]


# -- shared values -----------------------------------------------------------------------------


def shared_values(w, ids, keep_zeros=False):
    """The value of each cluster: its mean, rounded to one of 127 parts of the largest one."""
    means = {k: float(np.mean(np.float64(w)[ids == k])) for k in np.unique(ids)}
    if keep_zeros and 0 in means:
        means[0] = 0.0
    part = max(abs(mean) for mean in means.values()) / 127.0 or 1.0
    return {k: part * math.floor(mean / part + 0.5) for k, mean in means.items()}


def shared_gradient(upstream, ids):
    """The mean of the gradient over the cluster of each weight."""
    means = {k: float(np.mean(np.float64(upstream)[ids == k])) for k in np.unique(ids)}
    return np.vectorize(means.get)(ids)


def smallest_error(w, clusters):
    """Σ (w - its centroid)² of the best clusters there are: dynamic programming over sorted w."""
    ordered = np.sort(np.float64(w).ravel())
    count = len(ordered)

    def spread(low, high):
        return float(np.var(ordered[low:high]) * (high - low))

    of_one = [[spread(low, high) if high > low else 0.0 for high in range(count + 1)]
              for low in range(count)]  # fmt: skip
    best = [0.0] + [math.inf] * count
    for _ in range(clusters):
        best = [
            min([best[high], *(best[low] + of_one[low][high] for low in range(high))])
            for high in range(count + 1)
        ]
    return best[count]


# -- LQ-Nets -----------------------------------------------------------------------------------


def lq_integers(v):
    """Integers n, of an even sum of magnitudes up to 254, and s / 2: v is nearly s n / 2."""
    reach = sum(abs(one) for one in v)
    if reach == 0.0:
        return [0] * len(v), 1.0 / 254.0
    sizes = [math.floor(abs(one) / reach * (254.0 - len(v) / 2.0) + 0.5) for one in v]
    if sum(sizes) % 2:
        sizes[int(np.argmax(sizes))] -= 1
    integers = [int(math.copysign(size, one)) for size, one in zip(sizes, v, strict=True)]
    fit = np.dot(v, integers) / np.dot(integers, integers)
    return integers, float(fit)


def lq_patterns(bits):
    """All of {-1, 1}^b."""
    return np.array(list(itertools.product((-1, 1), repeat=bits)))


def lq_nearest(w, v):
    """The nearest level and its e for every weight of one range; of two, the upper one."""
    integers, half = lq_integers(v)
    every = lq_patterns(len(v))
    values = half * (every @ np.array(integers))
    distance = np.abs(np.float64(w).ravel()[:, None] - values[None, :])
    near = np.argmin(distance - 1e-12 * values, axis=1)
    return values[near].reshape(w.shape), every[near]


def lq_fit(w, v, ridge=0.0001):
    """The basis with the smallest mean (w - v e)² + ridge |v - v before|², by least squares."""
    signs, count = lq_nearest(w, v)[1], w.size
    rows = np.concatenate([signs / math.sqrt(count), math.sqrt(ridge) * np.eye(len(v))])
    wanted = np.concatenate(
        [np.float64(w).ravel() / math.sqrt(count), math.sqrt(ridge) * np.array(v)]
    )
    return np.asarray(np.linalg.lstsq(rows, wanted, rcond=None)[0])


# -- tables of rows --------------------------------------------------------------------------------


def table_codes(table):
    """Codes of a table, and the value of one: the largest magnitude is 127 codes."""
    scale = np.max(np.abs(np.float64(table))) / 127.0
    return round_half_up(np.float64(table) / scale), scale


def table_gradient(ids, upstream, count):
    """The gradient of a table: each row gets the sum of those of the places that its id is in."""
    gradient = np.zeros((count, upstream.shape[-1]))
    np.add.at(gradient, np.asarray(ids).reshape(-1), np.reshape(upstream, (-1, len(gradient[0]))))
    return gradient


# -- observed ranges -----------------------------------------------------------------------------


def expected_largest(values):
    """Peaks over threshold with an exponential tail: the largest of 30 times as many values."""
    values = [float(v) for v in values if math.isfinite(v)]
    if not values or max(values) <= 0.0:
        return 0.0
    tail = min(-(-len(values) // 10), len(values) - 1)
    ordered = sorted(values, reverse=True)
    excess = sum(v - ordered[tail] for v in ordered[:tail]) / tail if tail else 0.0
    return ordered[0] + excess * math.log(30.0)


FUNCTIONS = {
    "RELU": lambda x: np.maximum(x, 0.0),
    "RELU6": lambda x: np.clip(x, 0.0, 6.0),
    "RELU_N1_TO_1": lambda x: np.clip(x, -1.0, 1.0),
    "RELU_0_TO_1": lambda x: np.clip(x, 0.0, 1.0),
    "ABS": np.abs,
    "EXP": np.exp,
    "LOG": np.log,
    "RSQRT": lambda x: 1.0 / np.sqrt(x),
    "SQRT": np.sqrt,
}


# -- reconstruction ----------------------------------------------------------------------------


def adam(start, gradients, rate):
    """Kingma and Ba, Algorithm 1, with their β₁ = 0.9 and β₂ = 0.999."""
    value, mean, square = np.array(start, np.float64), 0.0, 0.0
    for step, gradient in enumerate(gradients, start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        corrected = mean / (1 - 0.9**step), square / (1 - 0.999**step)
        value = value - rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-7)
    return value


def output_errors(made, wanted):
    """Relative squared error of logits (n, classes), and T² times the mean KL at T = 4."""
    squared = np.sum((made - wanted) ** 2) / np.sum(wanted**2)
    q, p = (np.exp(x / 4) / np.sum(np.exp(x / 4), axis=1, keepdims=True) for x in (made, wanted))
    return float(squared), 16.0 * float(np.mean(np.sum(p * np.log(p / q), axis=1)))


# -- an LSTM ---------------------------------------------------------------------------------------


def lstm(x, kernels, recurrent, biases, clip=np.inf):
    """The hidden states (n, steps, units) of an LSTM in real values.

    Weights (units, inputs) and biases by gate: input, forget, cell and output; without the first,
    the input gate is 1 - forget gate.
    """

    def sigmoid(z):
        return 1.0 / (1.0 + np.exp(-z))

    cell = hidden = np.zeros((len(x), len(biases[0])))
    states = []
    for step in np.moveaxis(x, 1, 0):
        gates = zip(kernels, recurrent, biases, strict=True)
        *opening, forget, new, output = (step @ w.T + hidden @ r.T + b for w, r, b in gates)
        opens = sigmoid(opening[0]) if opening else 1.0 - sigmoid(forget)
        cell = np.clip(sigmoid(forget) * cell + opens * np.tanh(new), -clip, clip)
        hidden = sigmoid(output) * np.tanh(cell)
        states.append(hidden)
    return np.stack(states, axis=1)


# -- normalizations over features ------------------------------------------------------------------


def normalized(x, kind, gamma=None, beta=None, *, epsilon, groups=1):
    """A normalization of (batch, places, channels): "layer", "rms", "unit" or "group"."""
    x = np.asarray(x, np.float64)
    if kind == "unit":
        return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True))
    parts, axes = x[..., np.newaxis, :], (3,)
    if kind == "group":
        batch, places, channels = x.shape
        parts, axes = x.reshape(batch, places, groups, channels // groups), (1, 3)
    if kind != "rms":
        parts = parts - np.mean(parts, axis=axes, keepdims=True)
    y = parts / np.sqrt(np.mean(parts**2, axis=axes, keepdims=True) + epsilon)
    y = y.reshape(x.shape)
    return (1.0 if gamma is None else gamma) * y + (0.0 if beta is None else beta)


# -- kernels as tables of values -------------------------------------------------------------------


def expanded_table(indices, tables, shape, axis):
    """What TFLite Micro's DECODE makes of indices and tables: one value after the other."""
    bits, length = int(tables[5]), int(tables[6])
    digits = "".join(f"{int(byte):08b}" for byte in indices)
    values = [int(value) - 256 * (value > 127) for value in tables[16:].tolist()]
    kernel = np.zeros(shape, int)
    for place, where in enumerate(np.ndindex(*shape)):
        channel = 0 if axis is None else where[axis]
        kernel[where] = values[channel * length + int(digits[place * bits :][:bits], 2)]
    return kernel


# -- transition rates (Lee et al. 2025), with factors that grow as fast as they fall ---------------


def transitions(w, changes, units, bits, first_rate, momentum=0.9, gain=0.1, largest=10.0):
    """Latent weights, running rate and factor after these changes by an optimizer."""
    w = w.astype(np.float64)
    codes, rate, factor = units(w), None, 1.0
    for step, change in enumerate(changes, start=1):
        target = first_rate * math.sqrt(bits) * (1 + math.cos(math.pi * step / len(changes))) / 2
        w = w + factor * change
        before, codes = codes, units(w)
        changed = np.count_nonzero(before != codes) / w.size
        rate = momentum * (target if rate is None else rate) + (1 - momentum) * changed
        exponent = gain * max(1 - rate / target, -1) if target else -math.inf
        factor = min(factor * math.exp(exponent), largest)
    return w, rate, factor
