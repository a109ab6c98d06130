"""The constructors of quantizers, and the plain values that files have for them.

Needs no TensorFlow: a quantizer of tf_keras and the one of Keras 3 with its name have the same
arguments, which the former documents. They differ in what they compute with, which is theirs.
"""

from collections.abc import Sequence
from typing import Any

from sat_tf.core.grid_table import find_grid
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.core.weight_levels import lsq_code_ends, qil_largest_code
from sat_tf.quantizers.clusters import known_initialization
from sat_tf.quantizers.input_range import InputRange
from sat_tf.quantizers.settings import (
    SURROGATE_OPTIONS,
    as_floats,
    check_channel_limits,
    factor_of_interval,
    momentum_of_basis,
    one_of_starts,
    surrogate_config,
    true_or_false,
)


class OfRounding:
    """A choice of what rounding passes back."""

    surrogate: str
    surrogate_strength: float | None

    def _choose(self, surrogate: str, surrogate_strength: float | None) -> None:
        strength_of(surrogate, surrogate_strength)
        self.surrogate = surrogate
        self.surrogate_strength = surrogate_strength

    @property
    def passed_back(self) -> dict[str, Any]:
        """What the functions of `core` take for it."""
        return {"surrogate": self.surrogate, "strength": self.surrogate_strength}


# -- weights ---------------------------------------------------------------------------------------


class OfDorefa(OfRounding):
    """`DorefaQuantizer`."""

    def __init__(
        self,
        *,
        num_bits: int | None,
        grid: str = "auto",
        range_axes: Sequence[int] = (),
        detach_max: bool = False,
        rescale: str | None = None,
        fan_out: int = 1,
        initial_gain: float = 1.0,
        gain_axes: Sequence[int] | None = None,
        surrogate: str = STRAIGHT_THROUGH,
        surrogate_strength: float | None = None,
    ) -> None:
        self._choose(surrogate, surrogate_strength)
        self.num_bits = num_bits
        self.grid = grid
        self.range_axes = tuple(range_axes)
        self.detach_max = detach_max
        self.rescale: str | None = rescale
        self.fan_out = fan_out
        self.initial_gain = initial_gain
        self.gain_axes = None if gain_axes is None else tuple(gain_axes)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "grid": self.grid,
            "range_axes": list(self.range_axes),
            "detach_max": self.detach_max,
            "rescale": self.rescale,
            "fan_out": self.fan_out,
            "initial_gain": self.initial_gain,
            "gain_axes": None if self.gain_axes is None else list(self.gain_axes),
            **surrogate_config(self),
        }


class OfScaled:
    """`ScaledQuantizer`."""

    def __init__(
        self,
        *,
        num_bits: int | None,
        range_axes: Sequence[int] = (),
        rescale: str | None = None,
        fan_out: int = 1,
    ) -> None:
        self.num_bits = num_bits
        self.range_axes = tuple(range_axes)
        self.rescale: str | None = rescale
        self.fan_out = fan_out

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "range_axes": list(self.range_axes),
            "rescale": self.rescale,
            "fan_out": self.fan_out,
        }


class OfScaledWithSurrogate(OfRounding, OfScaled):
    """`ScaledWithSurrogate`."""

    def __init__(
        self,
        *,
        surrogate: str = STRAIGHT_THROUGH,
        surrogate_strength: float | None = None,
        **settings: Any,
    ) -> None:
        self._choose(surrogate, surrogate_strength)
        super().__init__(**settings)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), **{name: getattr(self, name) for name in SURROGATE_OPTIONS}}


class OfL1(OfScaledWithSurrogate):
    """`L1Quantizer`."""

    def __init__(self, *, grid: str = "auto", over_size: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.grid = grid
        self.over_size = true_or_false("over_size", over_size)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "grid": self.grid, "over_size": self.over_size}


class OfChannelBits(OfScaledWithSurrogate):
    """`ChannelBitsQuantizer`."""

    def __init__(
        self,
        *,
        lowest: int = 2,
        highest: int = 8,
        grid: str = "auto",
        over_size: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        check_channel_limits(lowest, highest)
        find_grid(grid, lowest)
        self.lowest = lowest
        self.highest = highest
        self.grid = grid
        self.over_size = true_or_false("over_size", over_size)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        own = {"lowest": self.lowest, "highest": self.highest, "grid": self.grid}
        return {**super().get_config(), **own, "over_size": self.over_size}


class OfLsq(OfScaledWithSurrogate):
    """`LsqQuantizer`."""

    def __init__(self, *, num_bits: int | None, start: str = "mean", **settings: Any) -> None:
        if num_bits is not None:
            lsq_code_ends(num_bits)
        super().__init__(num_bits=num_bits, **settings)
        self.start_at = one_of_starts(start)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "start": self.start_at}


class OfQil(OfScaledWithSurrogate):
    """`QilQuantizer`."""

    def __init__(
        self, *, num_bits: int | None, gradient_factor: float = 0.01, **settings: Any
    ) -> None:
        if num_bits is not None:
            qil_largest_code(num_bits)
        super().__init__(num_bits=num_bits, **settings)
        self.gradient_factor = factor_of_interval(gradient_factor)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "gradient_factor": self.gradient_factor}


class OfKMeans(OfScaled):
    """`KMeansQuantizer`."""

    def __init__(
        self,
        *,
        num_bits: int | None,
        rescale: str | None = None,
        fan_out: int = 1,
        initialization: str = "linear",
        keep_zeros: bool = False,
        reassign: bool = False,
    ) -> None:
        super().__init__(num_bits=num_bits, rescale=rescale, fan_out=fan_out)
        self.initialization = known_initialization(initialization)
        self.keep_zeros = true_or_false("keep_zeros", keep_zeros)
        self.reassign = true_or_false("reassign", reassign)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "rescale": self.rescale,
            "fan_out": self.fan_out,
            "initialization": self.initialization,
            "keep_zeros": self.keep_zeros,
            "reassign": self.reassign,
        }


class OfLqNets(OfScaled):
    """`LqNetsQuantizer`."""

    def __init__(self, *, momentum: float = 0.9, **settings: Any) -> None:
        super().__init__(**settings)
        self.momentum = momentum_of_basis(momentum)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "momentum": self.momentum}


# -- activations -----------------------------------------------------------------------------------


class OfClipping:
    """`ClippingQuantizer`."""

    def __init__(
        self,
        *,
        num_bits: int,
        initial_clipping_level: float = 8.0,
        gradient: str = "calibrated",
        ceiling: float | None = None,
        rate: float = 1.0,
    ) -> None:
        """See the subclasses.

        Args:
            num_bits: bits of the codes.
            initial_clipping_level: where the trainable `clipping_level` starts.
            gradient: a row of `clipping_gradients`.
            ceiling: max_value of the rectifier it replaces; no clipping level taken from data or
                from a policy starts above it.
            rate: factor on the gradient of the clipping level, above 0.
        """
        self.num_bits = num_bits
        self.initial_clipping_level: float = initial_clipping_level
        self.gradient: str = gradient
        self.ceiling: float | None = ceiling
        self.rate = rate

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "initial_clipping_level": self.initial_clipping_level,
            "gradient": self.gradient,
            "ceiling": self.ceiling,
            "rate": self.rate,
        }


class OfClippingAndRounding(OfRounding, OfClipping):
    """`RoundingQuantizer`."""

    def __init__(
        self,
        *,
        surrogate: str = STRAIGHT_THROUGH,
        surrogate_strength: float | None = None,
        **settings: Any,
    ) -> None:
        """See the subclasses.

        Args:
            surrogate: a row of `surrogate_table`.
            surrogate_strength: see there; None is the usual one.
            **settings: those of `ClippingQuantizer`.
        """
        super().__init__(**settings)
        self._choose(surrogate, surrogate_strength)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), **surrogate_config(self)}


class OfOffset(OfClippingAndRounding):
    """`OffsetQuantizer`."""

    def __init__(self, *, lowest: float = 0.0, share: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.lowest = lowest
        self.share = share

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "lowest": self.lowest, "share": self.share}


class OfUnit(OfRounding):
    """`UnitQuantizer`."""

    def __init__(
        self,
        *,
        num_bits: int,
        signed: bool = False,
        surrogate: str = STRAIGHT_THROUGH,
        surrogate_strength: float | None = None,
    ) -> None:
        self._choose(surrogate, surrogate_strength)
        self.num_bits = num_bits
        self.signed: bool = signed

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"num_bits": self.num_bits, "signed": self.signed, **surrogate_config(self)}


class OfLsqActivation(OfClippingAndRounding):
    """`LsqActivationQuantizer`."""

    def __init__(
        self,
        *,
        signed: bool = False,
        start: str = "mean",
        counts_batch: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.signed: bool = signed
        self.start = one_of_starts(start)
        self.counts_batch = true_or_false("counts_batch", counts_batch)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        own = {"signed": self.signed, "start": self.start, "counts_batch": self.counts_batch}
        return {**super().get_config(), **own}


class OfLsqPlus(OfOffset):
    """`LsqPlusQuantizer`."""

    def __init__(
        self,
        *,
        lowest: float = 0.0,
        share: float = 0.0,
        counts_batch: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(lowest=lowest, share=share, **settings)
        self.counts_batch = true_or_false("counts_batch", counts_batch)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "counts_batch": self.counts_batch}


# -- images, and what is observed ------------------------------------------------------------------


class OfImage:
    """`ImageQuantizer`."""

    def __init__(
        self,
        *,
        low: float | Sequence[float] = 0.0,
        high: float | Sequence[float] = 255.0,
        reversed_channels: bool = False,
        observes: bool = True,
        compares: bool = False,
        image_max: float | None = None,
    ) -> None:
        if image_max is not None:
            low, high, observes = 0.0, image_max, False
        self.range = InputRange(as_floats(low), as_floats(high), reversed_channels)
        self.observes = observes
        self.compares = compares

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "low": list(self.range.low),
            "high": list(self.range.high),
            "reversed_channels": self.range.reversed_channels,
            "observes": self.observes,
            "compares": self.compares,
        }


class OfObserver:
    """`RangeObserver`."""

    def __init__(self, *, rounds: bool = False, momentum: float | None = None) -> None:
        del momentum  # of the moving average in models that earlier versions saved
        self.rounds: bool = rounds

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"rounds": self.rounds}


class OfInput(OfObserver):
    """`InputQuantizer`."""

    def __init__(self, *, input_type: str, momentum: float | None = None) -> None:
        super().__init__(rounds=True, momentum=momentum)
        self.input_type: str | None = input_type

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"input_type": self.input_type}
