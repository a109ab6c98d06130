"""A quantizer declares and computes, on tensors of TensorFlow or of any backend of Keras 3.

A **weight quantizer** makes effective weights of latent ones, and says which integer codes they
are: effective = codes · scale, one scale for each output channel, which is what a file holds. An
**activation quantizer** makes a quantized tensor of a float one, and says its bits, its scale and
its ends. Others ask them for these and know no class: `quantizer_table` names the classes.

A quantizer holds no variables. It declares them, and the layer around it makes them. Nothing here
needs TensorFlow.
"""

import abc
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from sat_tf.arguments import is_number
from sat_tf.core.asymmetric import Reach
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate
from sat_tf.core.grid import AUTOMATIC, LARGEST_INT8, WIDE_BITS, is_bits
from sat_tf.core.tensor_ops import Tensor, namespace
from sat_tf.exact.tflite.input_range import InputRange
from sat_tf.messages import did_you_mean
from sat_tf.quantizers.seen_values import SeenValues
from sat_tf.quantizers.values import CodeRange, IntegerWeights, SampledValues, Variables

# The name, among the variables of a call, of the floor that a layer has under the bits.
BIT_FLOOR = "bit_floor"
# The variable that a quantizer with a clipping level has.
CLIPPING_LEVEL = "clipping_level"
# The fields of a policy for the bits and the grid of weights: of all layers, and of the first and
# the last linear layer.
BITS_FIELDS = ("weight_bits", "first_last_weight_bits")
GRID_FIELDS = ("weight_grid", "first_last_weight_grid")
# Settings that no policy gives: they follow from the model.
_SET_LATER = ("initial_gain", "initial_clipping_level")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableSpec:
    """A variable that a layer makes for its quantizer. None has weight decay."""

    shape: Sequence[int] = ()  # The shape of the variable.
    start: float = 0  # Its first value, everywhere.
    dtype: str = "float32"  # Its type.
    trainable: bool = False  # Whether the optimizer changes it.
    lowest: float | None = None  # The lower bound of its values after a step; None without one.
    # Whether it is assigned in training, as the statistics of BatchNormalization.
    follows_data: bool = False


def bits_of(num_bits: int, variables: Variables) -> Any:
    """The bits of a quantizer; a tensor where there is a floor that comes down in training."""
    floor = variables.get(BIT_FLOOR)
    if floor is None or num_bits >= 8:  # nothing is above
        return num_bits
    n = namespace(floor)
    return n.maximum(n.tensor(floor), num_bits)


class Quantizer(abc.ABC):
    """The base of all quantizers, which are equal when their settings are.

    Each argument of a constructor is kept in an attribute of its name.
    """

    # The type in which files take the input that it quantizes; None for any other tensor.
    input_type: str | None = None
    policy_name: ClassVar[str] = ""  # The name of its class in policies; "" where none names it.
    # The fields of a request that its constructor takes.
    asks: ClassVar[tuple[str, ...]] = ("num_bits",)
    # Whether it remembers the range of its tensor in its variables `lowest`, `highest` and
    # `observations`.
    observes_range: ClassVar[bool] = False
    rounds: bool = False  # Whether its results are on a grid, which `code_range` describes.
    # Whether it rounds in inference alone, as for streams that training keeps float.
    trains_float: bool = False
    # Whether training leaves its range as calibration has set it, and the output that feeds the
    # input of the model that it quantizes; see `observers.RangeObserver`.
    is_fixed: bool = False
    fed_by: str = ""

    def __post_init__(self) -> None:
        """Checks options of dataclasses that are bool, float or Literal, and makes tuples of axes.

        JSON has the axes as lists.
        """
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # a class is none yet
            name, value = field.name, getattr(self, field.name)
            choices = get_args(field.type) if get_origin(field.type) is Literal else (value,)
            if value not in choices:
                raise ValueError(f"{name}={value!r}: {did_you_mean(str(value), choices)}")
            if field.type is bool and not isinstance(value, bool):
                raise ValueError(f"{name}={value!r}: expected True or False.")
            if field.type is float and not is_number(value):
                raise ValueError(f"{name}={value!r}: expected a number.")
            if name.endswith("_axes") and value is not None:
                setattr(self, name, tuple(value))

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """The variables that it needs, by name, for a shape of the kernel, or tensor and batch."""
        return {}

    @abc.abstractmethod
    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        """Effective weights in float32, or the quantized tensor in the type of `inputs`.

        Differentiable. Latent weights are in float32, other tensors of any floating type. In
        training, which in TensorFlow a tensor may say, it may assign variables that follow the
        data, by each replica for itself; a frozen layer is not in training.
        """

    def assume_fed(self, variables: Variables, scale: float) -> None:
        """Gives variables that calibration would set plausible values; most have none.

        Plans are made of models that have seen no data, for the files that they would have later.
        The scale is that of the range, where it is not known beforehand.
        """
        del variables, scale

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, in values that JSON has."""
        values = {name: getattr(self, name) for name in self._argument_names()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Makes a quantizer of the arguments that `get_config` gave."""
        return cls(**config)

    def with_settings(self, **settings: Any) -> Self:
        """The same quantizer with other settings."""
        return type(self)(**{**self.get_config(), **settings})

    @classmethod
    def _argument_names(cls) -> tuple[str, ...]:
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(p.name for p in inspect.signature(cls).parameters.values() if p.kind in named)

    @classmethod
    def usual_request(cls, options: Mapping[str, Any]) -> Any:
        """A request for 8 bits with these options; None to a class that policies do not ask."""
        del options

    @classmethod
    def create(cls, request: Any) -> Any:
        """The quantizer that a policy and the graph ask for."""
        return cls(**cls.asked(request), **request.options)

    @classmethod
    def asked(cls, request: Any) -> dict[str, Any]:
        """Picks the constructor's arguments from a request."""
        return {name: getattr(request, name) for name in cls.asks}

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """The options of a policy: the arguments of its constructor that no request has."""
        request = cls.usual_request({})
        excluded = (*(cls.asked(request) if request else ()), *_SET_LATER)
        return tuple(name for name in cls._argument_names() if name not in excluded)

    @classmethod
    def option_problems(cls, options: Mapping[str, Any]) -> list[str]:
        """Returns what is wrong with options: unknown names, values that it refuses."""
        names = cls.option_names()
        problems = [
            f"{name} is not one of its options. "
            f"{did_you_mean(str(name), names) if names else 'It takes none.'} Bits, ranges and the "
            "like are fields of the policy."
            for name in options
            if name not in names
        ]
        if not problems:
            try:
                cls.create(cls.usual_request(options))  # which raises what is wrong with values
            except (TypeError, ValueError) as error:
                problems.append(str(error))
        return problems

    def describe(self) -> str:
        """One line for people, with its options."""
        config = self.get_config()
        options = [f"{name}={config[name]!r}" for name in self.option_names() if name in config]
        name = type(self).__name__
        return f"{name} ({', '.join(options)})" if options else name

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((type(self), repr(sorted(self.get_config().items()))))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({settings})"


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WithSurrogate(Quantizer):
    """A quantizer with a choice of the gradient that rounding passes back."""

    surrogate: str = STRAIGHT_THROUGH.name  # A row of `gradients.SURROGATES`.
    surrogate_strength: float | None = None  # See there; None is the usual one.

    def __post_init__(self) -> None:
        super().__post_init__()
        Surrogate(self.surrogate, self.surrogate_strength)  # which raises what is wrong with them

    @property
    def estimator(self) -> Surrogate:
        """The choice, as functions of `core` take it."""
        return Surrogate(self.surrogate, self.surrogate_strength)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, without the usual surrogate: older versions lack it."""
        config = super().get_config()
        usual = self.estimator == STRAIGHT_THROUGH
        left_out = ("surrogate", "surrogate_strength") if usual else ()
        return {name: value for name, value in config.items() if name not in left_out}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightRequest:
    """The settings that a policy and the graph give to the quantizer of one kernel."""

    num_bits: int | None  # 1 to 8, or None: not rounded.
    # The kernel's axes of output channels, which may have scales of their own.
    channel_axes: tuple[int, ...] = (-1,)
    fan_out: int = 1  # The layer's n̂.
    grid: str = "auto"  # `weight_grid` of the policy.
    range: str = "channel"  # "channel" or "layer": `weight_range` of the policy.
    detach_max: bool = False  # `detach_max` of the policy.
    # `rescale` of the policy; None for a layer with BatchNormalization right after it.
    rescale: str | None = None
    # Whether the latent weights will start where they keep the float layer's function.
    keeps_function: bool = False
    # `weight_options` of the policy.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def range_axes(self) -> tuple[int, ...]:
        """The kernel's axes with a range of their own."""
        return self.channel_axes if self.range == "channel" else ()

    @property
    def gain_axes(self) -> tuple[int, ...] | None:
        """The kernel's axes with gains of their own; None where the function is not kept."""
        return self.channel_axes if self.keeps_function else None


@dataclasses.dataclass(frozen=True)
class Predecessor:
    """The weight quantizer that a layer had under another policy."""

    quantizer: "WeightQuantizer"  # The quantizer itself.
    variables: Variables  # Its variables, by name.
    # Whether the function has to stay, also where the two quantizers make different effective
    # weights of the same latent ones.
    keep_function: bool


class WeightQuantizer(Quantizer):
    """Makes the effective weights of a layer from its latent ones, the variable that is trained.

    Required: the constructor, `__call__`, `integer_weights` and `largest_code`. The rest has
    answers that hold for a quantizer whose latent weights are of the size of float ones, with codes
    from -`largest_code` to `largest_code`.
    """

    asks: ClassVar[tuple[str, ...]] = ("num_bits", "channel_axes")
    num_bits: int | None  # 1 to 8; None makes the effective weights without rounding them.
    rescale: str | None = None  # Name of SAT's rescaling, where it has one.
    # The setting of a policy by which weights of 0 stay 0, for a quantizer without a 0.
    zeros_stay_with: ClassVar[str] = "weight_quantizer='lsq'"
    # Whether it takes `weight_grid` from the policy; one that does not has codes of its own, and a
    # policy that names a grid for it is refused.
    follows_grid: ClassVar[bool] = False
    # The fewest bits at which it exists; a policy that asks for fewer is refused.
    fewest_bits: ClassVar[int] = 1

    @classmethod
    def usual_request(cls, options: Mapping[str, Any]) -> WeightRequest:
        return WeightRequest(num_bits=8, options=options)

    @classmethod
    def bits_problem(cls, num_bits: int, options: Mapping[str, Any]) -> str | None:
        """Why a policy cannot have these weight bits with these options; None where it can."""

    @classmethod
    def field_problems(cls, fields: Mapping[str, Any]) -> list[str]:
        """Returns what is wrong with the bits and grids of a policy that names the quantizer."""
        clause = f"with weight_quantizer={cls.policy_name!r}: that quantizer"
        bits = {field: fields.get(field) for field in BITS_FIELDS}
        problems = [
            f"{field}={value!r} {clause} does not exist at so few bits; give it {cls.fewest_bits} "
            "or more, or use another quantizer."
            for field, value in bits.items()
            if is_bits(value) and value < cls.fewest_bits
        ]
        options = fields.get("weight_options", {})
        if not problems and not cls.option_problems(options):
            problems = [
                f"{field}={value!r}: {problem}"
                for field, value in bits.items()
                if is_bits(value) and (problem := cls.bits_problem(value, options))
            ]
        if not cls.follows_grid:
            problems += [
                f"{field}={fields[field]!r} {clause} has codes of its own; leave {field} out."
                for field in GRID_FIELDS
                if fields.get(field) not in (None, *AUTOMATIC)
            ]
        return problems

    # The settings whose codes fit int8, where those of the quantizer do not.
    int8_remedy: ClassVar[str] = "fewer bits"
    NOT_QUANTIZED: ClassVar[str] = (
        "received a layer whose weights are not quantized, expected 1 to 8 weight bits; call "
        "sat_tf.requantize(model, policy) with a policy that has weight_bits, train, and "
        "export again"
    )

    @abc.abstractmethod
    def integer_weights(self, latent: Tensor, variables: Variables) -> IntegerWeights:
        """The codes and scales of the effective weights; the quantizer rounds.

        The product is what the quantizer computes with, up to a few roundings of float32: the
        export refuses a layer for which that does not hold.
        """

    @property
    @abc.abstractmethod
    def largest_code(self) -> int:
        """The largest magnitude among its codes."""

    @property
    def code_ends(self) -> tuple[int, int]:
        """The smallest and the largest of its codes."""
        return -self.largest_code, self.largest_code

    def code_ends_of(self, kernel: Tensor) -> tuple[int, int]:
        """The code ends of weights that start at a float kernel, where it tells them."""
        return self.code_ends

    @property
    def grid_name(self) -> str:
        """The name of the grid of its codes: that of the quantizer itself."""
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
        """How many different codes its weights can have; `top_unit` + 1 for most quantizers."""
        return self.top_unit + 1

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        """The codes as integers n = 0..top, float32, by which they are counted and compared."""
        codes = self.integer_weights(latent, variables).codes
        return namespace(codes).cast(codes + self.largest_code, "float32")

    def can_be_held(self, latent: Tensor, variables: Variables) -> Tensor:
        """The weights that may be frozen at their codes while the others train: none by default."""
        return ~namespace(latent).ones_like(latent, dtype="bool")

    def hold(self, latent: Tensor, variables: Variables, units: Tensor, held: Tensor) -> Tensor:
        """Latent weights, of which the held ones have the given integers."""
        return latent

    def stages(self, latent: Tensor) -> dict[str, Tensor]:
        """The tensors before the effective weights, by their names in `LayerAudit` of audits."""
        return {}

    def rescale_constant(self, latent: Tensor, variables: Variables) -> float | None:
        """The factor on the quantized weights; the mean, where channels have their own."""

    def export_problem(self) -> str | None:
        """Why its weights have no int8 codes, and what to do; None where they have."""
        if self.num_bits is None:
            return self.NOT_QUANTIZED
        if self.fits_int8:
            return None
        return (
            f"received {self.num_bits}-bit weights on the {self.grid_name} grid, whose codes reach "
            f"{self.largest_code}, expected at most {LARGEST_INT8} to fit int8; requantize with "
            f"{self.int8_remedy}"
        )

    @property
    def fits_int8(self) -> bool:
        """Whether a file holds its codes; also where there are none, because nothing is rounded."""
        return self.num_bits is None or self.largest_code <= LARGEST_INT8

    @property
    def keeps_gains(self) -> bool:
        """Whether the function of a pretrained layer is in its variables."""
        return False

    def unrounded(self, latent: Tensor) -> Tensor:
        """The effective weights before rounding, of a quantizer without variables."""
        return self.with_settings(num_bits=None)(latent, False, {})

    def begin(self, kernel: Any, variables: Variables) -> None:
        """Gives its variables values that fit the latent weights, which stay; it has none here."""

    def keep_function(self, kernel: Any, variables: Variables) -> None:
        """Gives kernel and variables values that keep the function: here the kernel stays."""
        self.begin(kernel, variables)

    def describe_start(self, kernel: Any) -> str:
        """How the latent weights of a float kernel start, and why, in words."""
        return "keeps function and gradients: latent weights of the kernel's own size"

    def carries(self, before: Predecessor) -> bool:
        """Whether it can take over the latent weights and variables of another quantizer.

        Otherwise it starts from the effective weights of that one, or, where the function need not
        be kept, from its latent weights.
        """
        return type(before.quantizer) is type(self)

    def carry(self, latent: Tensor, variables: Variables, before: Predecessor) -> None:
        """Takes over what another quantizer of its kind has in its variables.

        Both have the same latent weights. Where the function has to stay, it makes up for what the
        two do differently with them. What the other one lacks begins with these weights.
        """
        kept = {
            name: old
            for name, old in before.variables.items()
            if name in variables and old.shape == variables[name].shape
        }
        if len(kept) < len(variables):
            self.begin(latent, variables)
        for name, old in kept.items():
            variables[name].assign(old)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationRequest:
    """The settings that a policy and the graph give to the quantizer of one tensor."""

    num_bits: int  # 1 to 8, or 16.
    signed: bool = False  # Whether values can be negative.
    # The values that a function can give, where one tells the range of the tensor.
    reach: Reach | None = None
    # Whether a tensor that can be negative may get a range that is not symmetric, which `calibrate`
    # finds.
    skews: bool = False
    ceiling: float | None = None  # The upper bound of values, where a rectifier or pixels have one.
    gradient: str = "calibrated"  # `clipping_gradient` of the policy.
    rate: float = 1.0  # `clipping_level_rate` of the policy.
    # `activation_options` of the policy.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class ActivationQuantizer(Quantizer):
    """Quantizes the tensor that a layer makes, to codes of 1 to 8 bits, or of 16.

    Required: the constructor, `__call__` and `code_range`; with a clipping level,
    `ClippingQuantizer` has the rest of what is required.
    """

    num_bits: int  # Bits of the codes.
    takes_wide: ClassVar[bool] = False  # Whether it has codes of 16 bits.
    # Whether it has codes for negative values. One that has none gives 0 for them, and takes the
    # place of a rectifier in front of it, unless `rectifies` says otherwise.
    signed: bool = False
    # Whether its range is a variable, `clipping_level`, that is trained and calibrated.
    has_clipping_level: ClassVar[bool] = False
    # Whether it defines the gradient of its level, so that `clipping_gradient` of a policy does not
    # apply.
    has_own_gradient: ClassVar[bool] = False
    rounds: bool = True
    # These are set by fields of the policy.
    gradient: str | None = None
    ceiling: float | None = None
    initial_clipping_level: float | None = None

    @classmethod
    def serves(cls, request: ActivationRequest) -> bool:
        """Whether it quantizes such a tensor; those of another kind get the default quantizer."""
        reach = request.reach
        if reach is not None and (reach.highest is not None or reach.has_lowest_alone):
            return not (cls.signed or reach.is_negative or reach.highest is not None)
        return request.signed == cls.signed

    @classmethod
    def usual_request(cls, options: Mapping[str, Any]) -> ActivationRequest:
        return ActivationRequest(num_bits=8, signed=cls.signed, options=options)

    @classmethod
    def field_problems(cls, fields: Mapping[str, Any]) -> list[str]:
        """Returns what is wrong with bits and gradient of a policy that names the quantizer."""
        problems = [
            f"{field}=16 with activation_quantizer={cls.policy_name!r}: expected an integer from 1 "
            "to 8, or 'pact', which has codes of 16 bits."
            for field in ("activation_bits", "stream_bits")
            if fields.get(field) == WIDE_BITS and not cls.takes_wide
        ]
        gradient = fields.get("clipping_gradient")
        if gradient in (None, "calibrated") or not cls.has_own_gradient:
            return problems
        return [
            *problems,
            f"clipping_gradient={gradient!r} with activation_quantizer={cls.policy_name!r}: that "
            "quantizer has a gradient of its own; leave clipping_gradient out.",
        ]

    @abc.abstractmethod
    def code_range(self, variables: Variables) -> CodeRange:
        """Its codes and their scale, by the arithmetic of the forward pass."""

    @property
    def rectifies(self) -> bool:
        """Whether it takes the place of a rectifier, instead of following it."""
        return not self.signed

    @property
    def is_symmetric(self) -> bool:
        """Whether its range reaches as far below 0 as above, unless its variables say otherwise."""
        return self.signed

    @property
    def fewest_bits(self) -> int:
        """The smallest number of bits at which it has a code other than 0."""
        return 2 if self.is_symmetric else 1

    @property
    def is_unit(self) -> bool:
        """Whether its range is that of a function that ends by its own definition, as a sigmoid."""
        return False

    def float_twin(self, inputs: Tensor) -> Tensor:
        """The tensor without rounding, and with no clipping to a level."""
        return namespace(inputs).maximum(inputs, 0.0) if self.rectifies else inputs

    def highest_value(self, variables: Variables) -> float:
        """The real value of its highest code."""
        code_range = self.code_range(variables)
        return float(code_range.scale * (code_range.lowest + float(code_range.intervals)))

    def best_level(self, sample: SampledValues) -> float:
        """The clipping level with the smallest error; for a quantizer with a clipping level."""
        raise TypeError(f"{self!r}: received a quantizer without a clipping level.")

    def best_range(self, sample: SampledValues) -> dict[str, float]:
        """The values of variables with the smallest error, by name: the clipping level alone."""
        return {CLIPPING_LEVEL: self.best_level(sample)}


class PixelQuantizer(Quantizer):
    """Marks an input that is an image, whose pixels are codes already."""

    range: InputRange  # The range of the values that the model is fed for the pixels.
    observes: bool  # Whether it remembers what it is fed.

    @abc.abstractmethod
    def seen(self, variables: Variables) -> SeenValues | None:
        """The values that it remembers; None where it has none, or was never fed in training."""

    @abc.abstractmethod
    def checked_by(self, variables: Variables) -> str:
        """Says what has told that the range is the model's; "" where nothing has."""

    @abc.abstractmethod
    def forget_check(self, variables: Variables) -> None:
        """Forgets what has told that the range is the model's: it was another one."""

    @abc.abstractmethod
    def remember(
        self, seen: SeenValues, variables: Variables, batches: int, *, checked_by: str = ""
    ) -> None:
        """Replaces what it remembers; what has checked the range stays, once there is anything."""
