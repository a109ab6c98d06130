"""DoReFa weights: the quantizer, and the latent weights of a float kernel."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sat_tf.core import dorefa
from sat_tf.core.grid import axes_within, range_shape
from sat_tf.core.tensor_ops import Tensor, namespace
from sat_tf.quantizers.protocol import Predecessor, VariableSpec, WithSurrogate, bits_of
from sat_tf.quantizers.scaled import WeightsOnGrid
from sat_tf.quantizers.values import GAIN, IntegerWeights, Variables, known_sizes


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class DorefaQuantizer(WithSurrogate, WeightsOnGrid):
    """Latent weights to effective weights: clamp, quantize, rescale (Eq. 5 to 10).

    Forward: Ξ = gain · c · Q, with Q from `dorefa.quantize_weights` (Ŵ where `num_bits` is None)
    and c from `dorefa.rescale_factor`; c = 1 where `rescale` is None. Backward: as documented
    there; gain and c are constants. The gain is the fixed, positive variable `rescale_gain`, which
    gives a pretrained layer the size back that the clamp takes; 1 is the paper.
    """

    policy_name: ClassVar[str] = "dorefa"
    asks: ClassVar[tuple[str, ...]] = (
        *("num_bits", "grid", "range_axes", "detach_max", "rescale", "fan_out", "gain_axes"),
    )
    # The rounded grid reaches -128 at 8 bits, and a negative γ turns that into +128.
    int8_remedy: ClassVar[str] = "weight_grid='auto' or 'narrow', or with 7 bits"

    detach_max: bool = False  # No gradient through the maximum.
    initial_gain: float = 1.0
    # Kernel axes with gains of their own. None, the paper: as `range_axes` where there is a
    # rescaling, and no variable otherwise.
    gain_axes: tuple[int, ...] | None = None

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        axes = self.gain_axes
        if axes is None:
            if self.rescale is None:
                return {}
            axes = self.range_axes
        of_ranges = range_shape(known_sizes(shape), axes) if axes else ()
        return {GAIN: VariableSpec(shape=of_ranges, start=self.initial_gain)}

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        if self.num_bits is None:
            values = self.clamp(inputs)
        else:
            values = dorefa.quantize_weights(
                inputs,
                bits_of(self.num_bits, variables),
                self.grid,
                self.detach_max,
                range_axes=self.range_axes,
                surrogate=self.estimator,
            )
        if GAIN not in variables:
            return values
        gain = namespace(values).tensor(variables[GAIN])
        if self.rescale is None:
            return values * gain
        return values * (self.factor(values, inputs) * gain)

    def clamp(self, latent: Tensor) -> Tensor:
        """The clamped weights Ŵ."""
        return dorefa.clamp_weights(latent, self.detach_max, range_axes=self.range_axes)

    def factor(self, values: Tensor, latent: Tensor) -> Tensor:
        """The rescaling constant c of these clamped or quantized weights; 1 without rescaling."""
        return dorefa.rescale_factor(
            values, self.fan_out, self.rescale or "none", latent=latent, range_axes=self.range_axes
        )

    def describe(self) -> str:
        """One line for people."""
        line = self._described("DoReFa", f" on the {self.grid_name} grid, one range")
        return line + self.estimator.describe()

    def integer_weights(self, latent: Tensor, variables: Variables) -> IntegerWeights:
        settings = (self.bits, self.grid)
        codes = dorefa.weight_codes(latent, *settings, range_axes=self.range_axes)
        n = namespace(codes)
        scales = n.tensor(np.full([1] * len(codes.shape), self.row.scale(self.bits)))
        if GAIN not in variables:
            return IntegerWeights(codes, scales)
        if self.rescale is not None:
            values = dorefa.quantize_weights(latent, *settings, range_axes=self.range_axes)
            scales = scales * n.cast(self.factor(values, latent), "float64")
        return IntegerWeights(codes, scales * n.cast(n.tensor(variables[GAIN]), "float64"))

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        return dorefa.weight_units(latent, self.bits, self.grid, range_axes=self.range_axes)

    def can_be_held(self, latent: Tensor, variables: Variables) -> Tensor:
        """All weights but those that give their range its size."""
        return ~dorefa.largest_weights(latent, range_axes=self.range_axes)

    def hold(self, latent: Tensor, variables: Variables, units: Tensor, held: Tensor) -> Tensor:
        axes = self.range_axes
        return dorefa.held_weights(latent, units, held, self.bits, self.grid, range_axes=axes)

    def stages(self, latent: Tensor) -> dict[str, Tensor]:
        stages = {"clamped": self.clamp(latent)}
        if self.num_bits is not None:
            stages["quantized"] = dorefa.quantize_weights(
                latent, self.num_bits, self.grid, range_axes=self.range_axes
            )
        return stages

    def rescale_constant(self, latent: Tensor, variables: Variables) -> float | None:
        if self.rescale is None:
            return None
        stages = self.stages(latent)
        values = stages.get("quantized", stages["clamped"])
        factor = self.factor(values, latent)
        return float(namespace(factor).mean(factor * variables[GAIN]))

    @property
    def keeps_gains(self) -> bool:
        return self.gain_axes is not None

    def unrounded(self, latent: Tensor) -> Tensor:
        clamped = self.clamp(latent)
        return clamped * self.factor(clamped, latent)

    def keep_function(self, kernel: Any, variables: Variables) -> None:
        """Makes latent weights of a float kernel; the gain gets the size that the clamp takes."""
        latent, maximum = latent_kernel(kernel.numpy(), self.range_axes)
        kernel.assign(latent)
        factor = self.factor(self.clamp(kernel), kernel).numpy()
        gain = variables[GAIN]
        gain.assign(np.broadcast_to(maximum / factor, gain.shape))

    def describe_start(self, kernel: np.ndarray) -> str:
        """How the latent weights of `latent_kernel` start, and why, in words."""
        if np.max(_maximum(np.asarray(kernel), self.range_axes)) <= _LARGEST_TANH:
            return super().describe_start(kernel)
        return (
            f"keeps the function: weights reach beyond {_LARGEST_TANH:g}, so latent weights are "
            "smaller"
        )

    def carry(self, latent: Tensor, variables: Variables, before: Predecessor) -> None:
        """Takes over the gain, and makes up for another range or rescaling of clamped weights."""
        variable, old = variables.get(GAIN), before.quantizer
        if variable is None or not isinstance(old, DorefaQuantizer):
            return
        old_gain = before.variables.get(GAIN)
        gain = np.float32(1.0) if old_gain is None else old_gain.numpy()
        differs = (old.range_axes, old.rescale) != (self.range_axes, self.rescale)
        if differs and before.keep_function:
            gain = gain * _shrinkage(old, self, latent)
        if np.broadcast_shapes(np.shape(gain), variable.shape) == tuple(variable.shape):
            variable.assign(np.broadcast_to(gain, variable.shape))


def _shrinkage(before: DorefaQuantizer, after: DorefaQuantizer, kernel: Tensor) -> np.ndarray:
    """The ratio of the sizes of the weights of two quantizers, for each range of either."""
    old, new = before.clamp(kernel), after.clamp(kernel)
    # Both are tanh(W), each over its own maximum, so that any weight of a channel tells the ratio.
    axes = {*before.range_axes, *after.range_axes}
    inner = [axis for axis in range(len(kernel.shape)) if axis not in axes]
    old_size, new_size = (
        np.max(np.abs(values), axis=tuple(inner), keepdims=True) for values in (old, new)
    )
    shrunk = np.where(old_size > 0.0, old_size / np.where(new_size > 0.0, new_size, 1.0), 1.0)
    sizes = before.factor(old, kernel) / after.factor(new, kernel)
    return np.asarray(shrunk * sizes.numpy())


# The largest |tanh(W)| of a start: kernels that reach 1 or more have no latent weights of their own
# size. At 0.9 the slope of tanh is 1 - 0.9² = 0.19, so that the largest weights still learn.
_LARGEST_TANH = 0.9


def latent_kernel(
    kernel: np.ndarray, range_axes: tuple[int, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Latent weights whose clamped value is the kernel divided by its maximum.

    W = atanh(r K / m), m = max|K| over all axes but `range_axes`, r = min(m, 0.9). An all-zero
    range has m = 1 and stays zero.
    """
    kernel = np.asarray(kernel, np.float64)
    maximum = _maximum(kernel, range_axes)
    return np.arctanh(np.minimum(maximum, _LARGEST_TANH) * (kernel / maximum)), maximum


def _maximum(kernel: np.ndarray, range_axes: tuple[int, ...]) -> np.ndarray:
    """max|K| of each range, with the reduced axes kept at length 1; 1 where all of it is 0."""
    reduced = tuple(axes_within(kernel.ndim, range_axes))
    maximum = np.max(np.abs(kernel), axis=reduced, keepdims=True)
    return np.where(maximum > 0.0, maximum, 1.0)
