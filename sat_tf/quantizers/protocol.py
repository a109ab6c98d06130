"""What every quantizer answers: all that the rest of the package knows of one.

A **weight quantizer** makes effective weights of latent ones, and says which integer codes they
are: effective = codes · scale, one scale for each output channel, which is what a file holds. An
**activation quantizer** makes a quantized tensor of a float one, and says its bits, its scale and
its ends. Placement, calibration, requantization, analysis, planning and export ask these questions
and know no class; `sat_tf.quantizers.table` names the classes.
"""

import abc
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.core.asymmetric import Reach
from sat_tf.core.grid_table import LARGEST_INT8
from sat_tf.messages import did_you_mean
from sat_tf.quantizers.input_range import InputRange
from sat_tf.quantizers.seen_values import SeenValues

register_quantizer = keras.utils.register_keras_serializable(package="sat_tf")
# Among the variables a quantizer is called with, where its layer has a floor under its bits.
BIT_FLOOR = "bit_floor"

# What a quantizer's variables are called by, and what they are.
Variables = Mapping[str, Any]
# Of many values at once, float32, each for itself.
Function = Callable[[np.ndarray], np.ndarray]


class SatQuantizer(tfmot.quantization.keras.quantizers.Quantizer):
    """What all quantizers of sat-tf share: they are equal when their settings are.

    Attributes:
        input_type: what the file takes for the input that it quantizes; None for a quantizer of any
            other tensor.
        policy_name: what policies call its class, set by the table; "" for one that none names.
        observes_range: whether it remembers the range of its tensor in its variables `lowest`,
            `highest` and `observations`.
        rounds: whether what it makes is on a grid, of which `code_range` tells.
    """

    input_type: str | None = None
    policy_name: ClassVar[str] = ""
    observes_range: ClassVar[bool] = False
    rounds: bool = False

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes no variables."""
        del tensor_shape, name, layer
        return {}

    def assume_fed(self, weights: Variables, scale: float) -> None:
        """Gives variables that calibration would set plausible values; most have none.

        Plans are made of models that have seen nothing, and of what their files would be later.

        Args:
            weights: the variables that `build` made.
            scale: of the range, where it is not known beforehand.
        """

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""

    def with_settings(self, **settings: Any) -> Self:
        """The same quantizer with other settings."""
        return type(self)(**{**self.get_config(), **settings})

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """The options that a policy may give it: what its constructor takes beside what is asked.

        >>> from sat_tf.quantizers.table import WEIGHT_QUANTIZERS
        >>> WEIGHT_QUANTIZERS["dorefa"].option_names()
        ('surrogate', 'surrogate_strength')
        """
        taken = inspect.signature(cls).parameters.values()
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(p.name for p in taken if p.kind in named and p.name not in cls.asked_names())

    @classmethod
    def asked_names(cls) -> tuple[str, ...]:
        """The arguments of the constructor that a policy and the graph give it."""
        return ("num_bits",)

    @classmethod
    def option_problems(cls, options: Mapping[str, Any]) -> list[str]:
        """What is wrong with options: names that it does not know, values that it refuses."""
        known = cls.option_names()
        problems = [
            f"{name} is not one of its options. "
            f"{did_you_mean(str(name), known) if known else 'It takes none.'} Bits, ranges and the "
            "like are fields of the policy."
            for name in options
            if name not in known
        ]
        if not problems:
            try:
                cls._try_options(options)
            except (TypeError, ValueError) as error:
                problems.append(str(error))
        return problems

    @classmethod
    def _try_options(cls, options: Mapping[str, Any]) -> None:
        """Makes one with these options, which raises what is wrong with their values."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((type(self), repr(sorted(self.get_config().items()))))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({settings})"


def bits_of(num_bits: int, weights: Variables) -> Any:
    """The bits of a quantizer; a tensor where there is a floor that comes down in training."""
    floor = weights.get(BIT_FLOOR)
    if floor is None or num_bits == 8:  # nothing is above
        return num_bits
    return tf.maximum(tf.convert_to_tensor(floor), num_bits)


# -- weights -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightRequest:
    """What a policy and the graph ask of the quantizer of one kernel.

    Attributes:
        num_bits: 1 to 8, or None: not rounded.
        channel_axes: the kernel's axes of output channels, which may have scales of their own.
        fan_out: the layer's n̂.
        grid: `weight_grid` of the policy.
        range: "channel" or "layer": `weight_range` of the policy.
        detach_max: of the policy.
        rescale: of the policy; None for a layer with BatchNormalization right behind it.
        keeps_function: the latent weights will start where they keep the float layer's function.
        options: `weight_options` of the policy.
    """

    num_bits: int | None
    channel_axes: tuple[int, ...] = (-1,)
    fan_out: int = 1
    grid: str = "auto"
    range: str = "channel"
    detach_max: bool = False
    rescale: str | None = None
    keeps_function: bool = False
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class IntegerWeights:
    """Weights as a file holds them: effective = codes · scales.

    Attributes:
        codes: int32, shaped like the kernel.
        scales: real value of one code, positive; of the kernel's rank, with length 1 along every
            axis but those of output channels, and along these too where they share one.
    """

    codes: tf.Tensor
    scales: tf.Tensor


class WeightQuantizer(SatQuantizer):
    """Makes the effective weights of a layer from its latent ones, the variable that is trained.

    Required: the constructor, `__call__`, `integer_weights`, `largest_code` and
    `get_config`. The rest has answers that hold for a quantizer whose latent weights are of the
    size of float ones, with codes from -`largest_code` to `largest_code`.

    Attributes:
        num_bits: 1 to 8; None makes the effective weights without rounding them.
        rescale: name of SAT's rescaling, where it has one.
        follows_grid: whether it takes `weight_grid` from the policy; one that does not has codes of
            its own, and a policy that names a grid for it is refused.
        fewest_bits: with fewer it does not exist, and a policy that asks for them is refused.
        zeros_stay_with: what a policy sets so that weights of 0 stay 0, where it has no 0.
    """

    num_bits: int | None
    rescale: str | None = None
    follows_grid: ClassVar[bool] = False
    zeros_stay_with: ClassVar[str] = "weight_quantizer='lsq'"
    fewest_bits: ClassVar[int] = 1

    NOT_QUANTIZED: ClassVar[str] = (
        "received a layer whose weights are not quantized, expected 1 to 8 weight bits; call "
        "sat_tf.requantize(model, policy) with a policy that has weight_bits, train, and "
        "export again"
    )

    @abc.abstractmethod
    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: Variables, **kwargs: Any
    ) -> tf.Tensor:
        """Effective weights from latent weights, both float32; differentiable.

        In training it may assign variables that it has made, by each replica for itself. A layer
        that is frozen is not in training.
        """

    @abc.abstractmethod
    def integer_weights(self, latent: tf.Tensor, variables: Variables) -> IntegerWeights:
        """The codes and scales of the effective weights; the quantizer rounds.

        The product is what `__call__` gives, up to a few roundings of float32: the export refuses
        a layer of which that does not hold.
        """

    @property
    @abc.abstractmethod
    def largest_code(self) -> int:
        """The largest magnitude among its codes."""

    @property
    def code_ends(self) -> tuple[int, int]:
        """The smallest and the largest of its codes."""
        return -self.largest_code, self.largest_code

    def code_ends_of(self, kernel: tf.Tensor) -> tuple[int, int]:
        """Those of weights that start at a float kernel, where it tells more than the bits do."""
        del kernel
        return self.code_ends

    # -- how it is made ----------------------------------------------------------------------------

    @classmethod
    def create(cls, request: WeightRequest) -> "WeightQuantizer":
        """The quantizer of one kernel."""
        return cls(num_bits=request.num_bits, channel_axes=request.channel_axes, **request.options)

    @classmethod
    def asked_names(cls) -> tuple[str, ...]:
        """The arguments of the constructor that a policy and the graph give it."""
        return ("num_bits", "channel_axes")

    @classmethod
    def _try_options(cls, options: Mapping[str, Any]) -> None:
        cls.create(WeightRequest(num_bits=8, options=options))

    @classmethod
    def bits_problem(cls, num_bits: int, options: Mapping[str, Any]) -> str | None:
        """Why a policy cannot have these weight bits with these options; None where it can.

        Args:
            num_bits: at least `fewest_bits`.
            options: `weight_options` of the policy, in which nothing else is wrong.
        """
        del num_bits, options
        return None

    # -- what it starts with -----------------------------------------------------------------------

    @property
    def keeps_gains(self) -> bool:
        """Whether the function of a pretrained layer is in its variables."""
        return False

    def unrounded(self, latent: tf.Tensor) -> tf.Tensor:
        """The effective weights before rounding, of a quantizer without variables."""
        return self.with_settings(num_bits=None)(latent, False, {})

    def start(self, kernel: tf.Variable, variables: Variables) -> None:
        """Gives its variables values that fit the latent weights; it has none here.

        Args:
            kernel: the latent weights, which stay as they are.
            variables: those that `build` made.
        """

    def keep_function(self, kernel: tf.Variable, variables: Variables) -> None:
        """Gives a float kernel, and the quantizer's variables, values that keep the function.

        Here the float weights are the latent ones.
        """
        self.start(kernel, variables)

    def describe_start(self, kernel: np.ndarray) -> str:
        """In words, how the latent weights of a float kernel start, and why."""
        del kernel
        return "keeps function and gradients: latent weights of the kernel's own size"

    def carries(self, before: "WeightQuantizer", *, keep_function: bool) -> bool:
        """Whether it can take over the latent weights and variables of another quantizer.

        Otherwise it starts from the effective weights of that one, or, where the function need not
        be kept, from its latent weights.

        Args:
            before: the other one.
            keep_function: whether the function has to stay.
        """
        del keep_function
        return type(before) is type(self)

    def carry(
        self,
        latent: tf.Tensor,
        variables: Variables,
        before: "WeightQuantizer",
        before_variables: Variables,
        *,
        keep_function: bool,
    ) -> None:
        """Takes over what another quantizer of its kind has in its variables.

        Args:
            latent: the latent weights, which both have.
            variables: its own.
            before: the other one.
            before_variables: what it has.
            keep_function: make up for what the two do differently with the same latent weights.
        """
        del latent, before, keep_function
        for name, variable in variables.items():
            if name in before_variables and before_variables[name].shape == variable.shape:
                variable.assign(before_variables[name])

    # -- what is known of its codes ----------------------------------------------------------------

    @property
    def grid_name(self) -> str:
        """What the grid of its codes is called: as the quantizer itself."""
        return self.policy_name or "integers"

    @property
    def channels_differ(self) -> bool:
        """Whether output channels have ranges, and so scales, of their own."""
        return True

    @property
    def holds_zero(self) -> bool:
        """Whether a weight of 0 stays 0."""
        return True

    @property
    def top_unit(self) -> int:
        """The largest of the integers n = 0..top that `units` gives."""
        return 2 * self.largest_code

    def code_count(self, variables: Variables) -> int:
        """How many different codes its weights can have; `top_unit` + 1, but for special ones."""
        del variables
        return self.top_unit + 1

    def units(self, latent: tf.Tensor, variables: Variables) -> tf.Tensor:
        """The codes as integers n = 0..top, float32, by which they are counted and compared."""
        codes = self.integer_weights(latent, variables).codes
        return tf.cast(codes + self.largest_code, tf.float32)

    def can_be_held(self, latent: tf.Tensor, variables: Variables) -> tf.Tensor:
        """Which weights may be frozen at their codes while the others train: none by default."""
        del variables
        return tf.zeros(latent.shape, tf.bool)

    def hold(
        self, latent: tf.Tensor, variables: Variables, units: tf.Tensor, held: tf.Tensor
    ) -> tf.Tensor:
        """Latent weights of which those that are held have the given integers."""
        del variables, units, held
        return latent

    def stages(self, latent: tf.Tensor) -> dict[str, tf.Tensor]:
        """What it makes of latent weights on the way, by the names of `analysis.WeightUse`."""
        del latent
        return {}

    def rescale_constant(self, latent: tf.Tensor, variables: Variables) -> float | None:
        """What the quantized weights are multiplied by; the mean, where channels have their own."""
        del latent, variables
        return None

    def export_problem(self) -> str | None:
        """Why its weights have no int8 codes, and what to do; None where they have."""
        if self.num_bits is None:
            return self.NOT_QUANTIZED
        if self.fits_int8:
            return None
        return (
            f"received {self.num_bits}-bit weights of {self!r}, whose codes reach "
            f"{self.largest_code}, expected at most {LARGEST_INT8} to fit int8; requantize with "
            "fewer bits"
        )

    @property
    def fits_int8(self) -> bool:
        """Whether a file holds its codes; also where there are none, because nothing is rounded."""
        return self.num_bits is None or self.largest_code <= LARGEST_INT8

    def describe(self) -> str:
        """One line for people, with its options."""
        return _described(self)


# -- activations -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationRequest:
    """What a policy and the graph ask of the quantizer of one tensor.

    Attributes:
        num_bits: 1 to 8.
        signed: whether values can be negative.
        reach: which values a function gives, where one tells the range of the tensor.
        ceiling: what no value exceeds, where a rectifier or the pixels say so.
        gradient: `clipping_gradient` of the policy.
        rate: `clipping_level_rate` of the policy.
        options: `activation_options` of the policy.
    """

    num_bits: int
    signed: bool = False
    reach: Reach | None = None
    ceiling: float | None = None
    gradient: str = "calibrated"
    rate: float = 1.0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class CodeRange:
    """Codes lowest..lowest + intervals, each worth `scale`; code 0 is real 0.

    Attributes:
        scale: the real value of one code, a float32 scalar tensor.
        lowest: the lowest code, a float32 scalar tensor that holds an integer.
        intervals: the highest code minus the lowest.
    """

    scale: tf.Tensor
    lowest: tf.Tensor
    intervals: int

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest code."""
        lowest = int(self.lowest)
        return lowest, lowest + self.intervals

    @property
    def zero_point(self) -> int:
        """The int8 number that a file stores for real 0.

        0 where the range is symmetric; else the highest code is stored as 127, where int8
        saturates.
        """
        lowest, highest = self.ends
        return 0 if lowest == -highest else LARGEST_INT8 - highest


class ActivationQuantizer(SatQuantizer):
    """Quantizes the tensor that a layer makes, to codes of 1 to 8 bits.

    Required: the constructor, `__call__`, `code_range` and `get_config`; with a clipping
    level, `ClippingQuantizer` has the rest of what that takes.

    Attributes:
        num_bits: bits of the codes.
        signed: whether it has codes for negative values. One that has none gives 0 for them, and
            takes the place of a rectifier in front of it, unless `rectifies` says otherwise.
        has_clipping_level: whether its range is a variable, `clipping_level`, that is trained and
            calibrated.
        has_own_gradient: whether it defines the gradient of its level, so that `clipping_gradient`
            of a policy has no say.
    """

    num_bits: int
    signed: bool = False
    has_clipping_level: ClassVar[bool] = False
    has_own_gradient: ClassVar[bool] = False
    rounds: bool = True
    # Of the arithmetic: x / scale is rounded, and clipped after that.
    rounds_before_clipping: ClassVar[bool] = False
    # What the policy's fields say of it.
    gradient: str | None = None
    ceiling: float | None = None
    initial_clipping_level: float | None = None

    @abc.abstractmethod
    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: Variables, **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`; differentiable."""

    @abc.abstractmethod
    def code_range(self, variables: Variables) -> CodeRange:
        """Its codes and their scale, by the arithmetic of the forward pass."""

    @classmethod
    def serves(cls, request: ActivationRequest) -> bool:
        """Whether it quantizes such a tensor; those of another kind get the default quantizer."""
        reach = request.reach
        if reach is not None and (reach.highest is not None or reach.has_lowest_alone):
            return not (cls.signed or reach.is_negative or reach.highest is not None)
        return request.signed == cls.signed

    @classmethod
    def create(cls, request: ActivationRequest) -> "ActivationQuantizer":
        """The quantizer of one tensor that it serves."""
        return cls(num_bits=request.num_bits, **request.options)

    @classmethod
    def _try_options(cls, options: Mapping[str, Any]) -> None:
        cls.create(ActivationRequest(num_bits=8, signed=cls.signed, options=options))

    @property
    def rectifies(self) -> bool:
        """Whether it takes the place of a rectifier, instead of following it."""
        return not self.signed

    @property
    def is_symmetric(self) -> bool:
        """Whether its range reaches as far below 0 as above."""
        return self.signed

    @property
    def fewest_bits(self) -> int:
        """The smallest number of bits at which it has a code other than 0."""
        return 2 if self.is_symmetric else 1

    @property
    def is_unit(self) -> bool:
        """Whether its range is that of a function that ends by its own definition, as a sigmoid."""
        return False

    def float_twin(self, inputs: tf.Tensor) -> tf.Tensor:
        """What the tensor would be without rounding, and with no clipping to a level."""
        return tf.nn.relu(inputs) if self.rectifies else inputs

    def highest_value(self, variables: Variables) -> float:
        """The real value of its highest code."""
        found = self.code_range(variables)
        return float(found.scale * (found.lowest + float(found.intervals)))

    def best_level(
        self,
        values: np.ndarray,
        largest: float,
        counts: np.ndarray | None = None,
        function: Function | None = None,
    ) -> float:
        """The clipping level with the smallest error on values; for one with a clipping level.

        Args:
            values: a sample of the tensor, any shape.
            largest: largest magnitude in the whole tensor; above 0.
            counts: how many values each stands for; None is 1 for all.
            function: the only one that reads the tensor; then its error counts.
        """
        raise TypeError(f"{self!r}: received a quantizer without a clipping level.")

    def describe(self) -> str:
        """One line for people, with its options."""
        return _described(self)


# -- images ----------------------------------------------------------------------------------------


class PixelQuantizer(SatQuantizer):
    """Marks an input that is an image, whose pixels are codes already.

    Attributes:
        range: what the model is fed for the pixels.
        observes: whether it remembers what it is fed.
    """

    range: InputRange
    observes: bool

    @abc.abstractmethod
    def seen(self, weights: Variables) -> SeenValues | None:
        """What it remembers; None where it was never fed in training, or remembers nothing."""

    @abc.abstractmethod
    def remember(self, seen: SeenValues, weights: Variables, batches: int) -> None:
        """Replaces what it remembers."""


def _described(quantizer: SatQuantizer) -> str:
    config = quantizer.get_config()
    options = [f"{name}={config[name]!r}" for name in quantizer.option_names() if name in config]
    name = type(quantizer).__name__
    return f"{name} ({', '.join(options)})" if options else name
