"""The policy: how many bits each kind of tensor gets, and by which variant of the method."""

import dataclasses
import fnmatch
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NoReturn, get_type_hints

from pydantic import BaseModel, Field, ValidationError, create_model, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from sat_tf.core.dorefa import RESCALINGS
from sat_tf.core.gradients import CLIPPING_GRADIENTS
from sat_tf.core.grid import WIDE_BITS, is_bits
from sat_tf.exact.targets.processors import DEFAULT_TARGET, PROCESSORS, Processor
from sat_tf.exact.tflite import input_range as input_ranges
from sat_tf.messages import behind
from sat_tf.messages.validation import STRICT, describe, one_of, refuse, worded
from sat_tf.qat.policy_fields import (
    DEFAULT_QUANTIZERS,
    GRID_NAMES,
    OLD_INPUT_RANGE,
    UNSTATED_RANGE,
    Frozen,
    InputType,
    KernelFields,
    Level,
    Name,
    Options,
    Overrides,
    Range,
    Rate,
    States,
    bits,
    bits_of_activations,
    kernel_fields,
    pair_problems,
    plain_numbers,
    quantizer_problems,
    warn_of,
)

# The bits of the command, and of every function of Python, where none are given.
USUAL_BITS = 8


@worded
@dataclass(frozen=True, kw_only=True, repr=False, config=STRICT)
class BitPolicy:
    """Says what is quantized, and how.

    Five fields are what most models need. It is frozen; change it with `dataclasses.replace`. What
    quantizes without a policy, here as on the command line, has `BitPolicy.mobile()`, with 8 bits;
    fields that one of your own does not name are those of `BitPolicy()`, which has 4.

    >>> policy = BitPolicy(
    ...     weight_bits=4,
    ...     activation_bits=8,
    ...     input_range=(0, 1),
    ...     target="ethos-u55",
    ...     overrides={"block_1_*": {"weight_bits": 8}},
    ... )
    >>> policy.stream_bits
    8
    >>> BitPolicy(weight_bits=9, rescale="std")
    Traceback (most recent call last):
      ...
    sat_tf.messages.ProblemsError: BitPolicy: 2 problems
      - weight_bits=9: expected an integer from 1 to 8, or None (not rounded).
      - rescale='std': expected one of constant, stddev, none. Did you mean stddev?

    Attributes:
        weight_bits: bits of the weights of linear layers, 1 to 8, and of LSTMs, 2 to 8. None
            clamps and rescales them only: the paper's float model. First and last layer follow it
            then, and LSTMs keep 8.
        activation_bits: bits of every tensor that enters a linear layer, 1 to 8, or 16, codes of
            int16 around 0, which are those of streams and outputs as well then. None keeps all
            activations float, streams included, and leaves rectifiers as they are.
        input_range: what the model is fed: (low, high), the real values of the pixels 0 and 255,
            such as (0, 1) for x / 255 and (-1, 1) for x / 127.5 - 1, each a number or one for each
            channel; or the name of a preprocessing of `keras.applications`, "tf", "torch" or
            "caffe", for which the file takes RGB pictures. {"input name": range} gives each input
            its own; those not named get pixels as they are, (0, 255). input_max=1.0 is an older
            spelling of input_range=(0, 1).
        target: the processor that the file is for, a name of
            `sat_tf.exact.targets.processors.PROCESSORS`: "litert", LiteRT's CPU kernels; "micro",
            TFLite Micro; an NPU, "ethos-u55", "ethos-u65" or "ethos-u85"; or "int8", TFLite's int8
            specification. It says what is trained where an NPU computes otherwise than a CPU, and
            what `export_tflite` writes. None is "litert", and to `requantize` what the model has.
        overrides: layer-name pattern (as in `fnmatch`) to fields for the layers it matches, for
            example `{"block_1_*": {"weight_bits": 8}}`; later patterns win. `weight_*`, rescale and
            detach_max speak of the layer's kernel, activation_bits and requantize_streams of the
            tensor that enters it (activation_bits given here hold for streams too), stream_bits,
            clipping_gradient, initial_clipping_level and activation_quantizer, with its options,
            of the tensor it makes. weight_bits=None leaves the table of an Embedding float.
        first_last_weight_bits: weight bits of the first and last linear layers; None: weight_bits.
        stream_bits: bits of tensors that are not the output of a rectifier (residual sums, linear
            bottlenecks, inputs and outputs of pooling), 2 to 8, or 16 as with activation_bits. None
            keeps them float, as the paper does. Those that can be negative have 8 or 16 where a
            sum, a mean or the output makes or reads them; fewer are refused, because only the
            integers of a file themselves saturate there.
        requantize_streams: False: linear layers read streams as they are, at stream bits, which
            costs nothing in the file and keeps what few bits would lose. True: they read them
            at `activation_bits`, through an inserted quantizer. Float streams always are.
        weight_grid: "packed" (DoReFa, but narrow at 4 and at 8 bits, where its codes need one bit
            more in a file), "auto" (DoReFa to 7 bits, narrow at 8, the grid that fits int8),
            "dorefa", "narrow", "rounded", "modified" or "nested" (for several bit widths that share
            weights); see `sat_tf.core.grid`. A layer whose own 8 bits do not fit int8 on it
            (first or last, or by an override) is on "auto" instead. weight_bits=8 on such a grid is
            refused where activations and streams are integers.
        first_last_weight_grid: the grid of the first and last linear layers; None: weight_grid,
            as above.
        weight_range: "channel" divides weights by the maximum of the output channel, "layer" by
            that of the layer (the paper), which costs more of the function at few bits.
        detach_max: True: no gradient through that maximum, and a fresh network learns as its float
            model does. False is the paper.
        rescale: "stddev" (Eq. S23) gives a kernel the size that it has in float, "constant" (SAT,
            Eq. 10, the paper) one that does not change in training, "none" that of its range; on
            linear layers without BatchNormalization right after them.
        clipping_gradient: "calibrated" (CG-PACT, Eq. 13) or "pact".
        clipping_level_rate: factor on the gradient of clipping levels. 1 is the paper; less keeps
            calibrated ones from jumping about at high learning rates.
        initial_clipping_level: where clipping levels start; a rectifier's own max_value caps it.
            None: with the smallest error on what γ and β of the normalizations before a tensor
            tell of its values; see `sat_tf.qat.value_ranges`.
        initial_classifier_clipping_level: the same for what enters the last linear layer.
        weight_quantizer: what quantizes weights: "dorefa", "lsq", "l1", "kmeans", "lq_nets",
            "qil", "channel_bits" (of which weight_bits is the mean) or one of your own; see
            `sat_tf.configs.weight_quantizer`. None: the best known at the bits of the layer,
            "l1" at 2 and "dorefa" elsewhere. weight_grid is for "dorefa", "l1" and "channel_bits",
            detach_max for "dorefa", weight_range for all but "kmeans" and "channel_bits"; all but
            "dorefa" are rescaled with rescale="constant" alone.
        weight_options: its settings, {"name": value}, such as {"surrogate": "ewgs"}.
        activation_quantizer: what quantizes the tensors that it is for: "pact", "lsq", "lsq_plus"
            or one of your own; see `sat_tf.configs.activation_quantizer`.
        activation_options: its settings, {"name": value}.
        input_type: what the file takes: "uint8", the pixels of a picture; "int8", codes with a
            scale and a zero point from data, "int16", codes of 16 bits around 0, and "float32",
            real values that a QUANTIZE in the file makes such codes of, of 16 bits where a layer
            reads them with activation_bits=16, for inputs that are not pictures. {"input name":
            type} gives each input its own. None is "uint8", and to `requantize` what the model has.
            An input that only layers left float read stays as it is, unless this or `input_range`
            speaks of it; one whose readers take it for ids, in any case.
        states: {"output name": "input name"}: outputs of a streaming model that are fed back to its
            inputs with the next frame. The two of a pair have one grid, which calibration sets and
            training leaves as it is, and the file takes and gives its int8 codes, whatever
            `input_type` says of all inputs; see `export_tflite`. None is no state, and to
            `requantize` those that the model has.
        latent_start: "keep_function" gives a float model latent weights that keep its function;
            "as_is" keeps its weights and lets the clamp bend them, for training from scratch.
        unsupported: "error" refuses a model with layers sat-tf cannot quantize, "float" leaves
            such layers float.
    """

    weight_bits: Annotated[int | None, bits("not rounded")] = 4
    activation_bits: Annotated[int | None, *bits_of_activations("activations stay float")] = 4
    first_last_weight_bits: Annotated[int | None, bits("same as weight_bits")] = 8
    stream_bits: Annotated[int | None, *bits_of_activations("streams stay float", fewest=2)] = 8
    requantize_streams: bool = False
    weight_grid: Annotated[str, one_of(GRID_NAMES)] = "packed"
    first_last_weight_grid: Annotated[
        str | None, one_of(GRID_NAMES, none="weight_grid, where int8 holds its codes")
    ] = None
    weight_range: Literal["layer", "channel"] = "channel"
    detach_max: bool = True
    rescale: Annotated[str, one_of(RESCALINGS)] = "stddev"
    clipping_gradient: Annotated[str, one_of(CLIPPING_GRADIENTS)] = "calibrated"
    clipping_level_rate: Rate = 1.0
    initial_clipping_level: Level = None
    initial_classifier_clipping_level: Level = None
    weight_quantizer: Annotated[
        Name | None,
        Field(description="the name of a quantizer, or None (the best known at the layer's bits)"),
    ] = None
    weight_options: Options = Frozen({})
    activation_quantizer: Name = "pact"
    activation_options: Options = Frozen({})
    input_range: Range = UNSTATED_RANGE
    input_type: InputType = None
    states: States = None
    target: Annotated[
        str | None, one_of(PROCESSORS, none=f"{DEFAULT_TARGET}, or what the model has")
    ] = None
    latent_start: Literal["keep_function", "as_is"] = "keep_function"
    unsupported: Literal["error", "float"] = "error"
    overrides: Overrides = Frozen({})

    @model_validator(mode="wrap")
    @classmethod
    def _fit_together(cls, received: ArgsKwargs, make: Callable[[Any], Any]) -> Any:
        """Makes a policy, or says all that is wrong with its fields, by themselves or together."""
        listed = [
            f"{value!r}: received a value without a name, expected fields by their names; write "
            f"{cls.__name__}(weight_bits=..., activation_bits=...), or {cls.__name__}.mobile(bits)."
            for value in received.args
        ]
        fields, old = _in_one_spelling(received.kwargs or {})
        listed += old
        policy, wrong = None, set[Any]()
        try:
            policy = make(ArgsKwargs((), fields))
        except ValidationError as error:
            listed += describe(error, cls)
            wrong = {problem["loc"][0] for problem in error.errors()}
        values = {name: getattr(cls, name) for name in FIELDS}
        values |= {name: fields[name] for name in FIELDS if name in fields and name not in wrong}
        overrides = {} if "overrides" in wrong else fields.get("overrides", {})
        refuse(*listed, *combination_problems(values), *_override_problems(overrides, values))
        warn_of(values, *(_overridden(values, changed) for changed in overrides.values()))
        return policy

    @classmethod
    def paper(cls, bits: int, **fields: Any) -> "BitPolicy":
        """The paper's setting: weights and activations at `bits`, streams float, weights as is.

        One range for a layer's weights, a gradient through its maximum, constant rescaling, and
        clipping levels that start at 8, in front of the classifier at 10.

        First and last layer have 8-bit weights on the narrow grid, which fits int8. With
        weight_grid="dorefa" they are on the paper's own grid too: a model to train, which cannot
        be exported, and is warned of. Fields of the policy depart from the paper.
        """
        setting: dict[str, Any] = {"weight_bits": bits, "activation_bits": bits}
        setting |= {"weight_grid": "auto", "stream_bits": None, "latent_start": "as_is"}
        setting |= {"weight_range": "layer", "detach_max": False, "rescale": "constant"}
        setting |= {"weight_quantizer": DEFAULT_QUANTIZERS["weight"]}
        setting |= {"initial_clipping_level": 8.0, "initial_classifier_clipping_level": 10.0}
        if fields.get("weight_grid") == "dorefa":
            setting["first_last_weight_grid"] = "dorefa"
        defaults = {name: value for name, value in setting.items() if name not in fields}
        return cls(**defaults, **fields)

    @classmethod
    def mobile(cls, bits: int = USUAL_BITS, **fields: Any) -> "BitPolicy":
        """Integer from the image to the logits: weights and activations at `bits`, 8-bit streams.

        Linear layers read streams at their 8 bits; rectified tensors have `bits`. Weights are on
        the grid that a file stores in its own bits: the narrow one at 4 bits, where DoReFa's codes
        need 5. Without a number there are 8 bits; any field of the policy changes the setting.
        """
        return cls(**{"weight_bits": bits, "activation_bits": bits, "stream_bits": 8, **fields})

    def at(
        self, layer_name: str, annotation: Mapping[str, Any] | None = None, *, end: bool = False
    ) -> "BitPolicy":
        """The policy for one layer: its annotation over the matching overrides over the rest.

        Weight bits, grids and clipping levels given for a layer hold for it even where it is the
        first or the last one, or makes what enters the last one; activation bits even where it
        reads a stream. At an `end`, a first or last linear layer, `weight_bits` and `weight_grid`
        become those that hold there.

        Raises:
            ValueError: fields that are right alone are wrong together.

        >>> at = BitPolicy.mobile(2, weight_grid="rounded").at("stem", end=True)
        >>> at.weight_bits, at.weight_grid
        (8, 'auto')
        """
        fields = self._given(layer_name, annotation)
        reads = fields.get("activation_bits", self.activation_bits)
        if reads == WIDE_BITS and self.stream_bits is not None:  # kernels that read int16 make it
            fields.setdefault("stream_bits", WIDE_BITS)
        if not fields and not end:
            return self
        if "weight_bits" in fields or end:
            kernel = kernel_fields(self._all_fields(), fields, end=end)
            fields |= {"weight_bits": kernel.bits, "weight_grid": kernel.grid}
            fields["first_last_weight_bits"] = None
        if "activation_bits" in fields:
            fields.setdefault("requantize_streams", True)
        fields = _with_own_options(fields)
        if "initial_clipping_level" in fields:
            fields["initial_classifier_clipping_level"] = fields["initial_clipping_level"]
        fields.setdefault("first_last_weight_grid", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said when the policy was made
            return dataclasses.replace(self, **fields, overrides={})

    def _given(self, layer_name: str, annotation: Mapping[str, Any] | None) -> dict[str, Any]:
        """The fields that overrides and its annotation give one layer."""
        fields: dict[str, Any] = {}
        for pattern, overriding in self.overrides.items():
            if fnmatch.fnmatchcase(layer_name, pattern):
                fields.update(overriding)
        return {**fields, **(annotation or {})}

    def kernel_at(
        self, layer_name: str, annotation: Mapping[str, Any] | None = None, *, end: bool = False
    ) -> KernelFields:
        """The bits and grid of one layer's weights, as `at` has them, and what says them."""
        return kernel_fields(self._all_fields(), self._given(layer_name, annotation), end=end)

    def names_weights(self, layer_name: str, annotation: Mapping[str, Any] | None = None) -> bool:
        """Whether anything names the weight quantizer of one layer; else it is the best known."""
        fields = {**self._all_fields(), **self._given(layer_name, annotation)}
        return fields["weight_quantizer"] is not None

    def of_one_kind(self) -> "BitPolicy":
        """The policy with DoReFa's weights where it names none, for comparisons of bits."""
        if self.weight_quantizer is not None:
            return self
        return dataclasses.replace(self, weight_quantizer=DEFAULT_QUANTIZERS["weight"])

    @property
    def processor(self) -> Processor:
        """The row of `target`: what is known of the processor that the file is for."""
        return PROCESSORS[self.target or DEFAULT_TARGET]

    @property
    def states_input_range(self) -> bool:
        """Whether `input_range` was given, and not left as it is."""
        return self.input_range is not UNSTATED_RANGE

    def range_of(self, input_name: str) -> input_ranges.InputRange:
        """The range of one of the model's inputs."""
        return input_ranges.range_of(self._of_input("input_range", input_name))

    def type_of(self, input_name: str) -> str:
        """The type that the file takes for one of the model's inputs, a name of `INPUT_TYPES`."""
        usual = (
            input_ranges.STATE_TYPE if self.is_state(input_name) else input_ranges.INPUT_TYPES[0]
        )
        return str(self._of_input("input_type", input_name) or usual)

    def is_state(self, input_name: str) -> bool:
        """Whether `states` names one of the model's inputs."""
        return input_name in (self.states or {}).values()

    def _of_input(self, field_name: str, input_name: str) -> Any:
        """Looks up a field of inputs for one of them; its default if the field does not name it."""
        stated, default = getattr(self, field_name), getattr(BitPolicy, field_name)
        if isinstance(stated, Mapping):
            return stated.get(input_name, default)
        return default if self.is_state(input_name) else stated  # for all others

    def change_of(self, input_name: str) -> input_ranges.Change:
        """The change from what the first layers read to what an input is fed."""
        if self.type_of(input_name) != input_ranges.INPUT_TYPES[0]:
            return input_ranges.NO_CHANGE
        return self.range_of(input_name).change

    def states_range_of(self, input_name: str) -> bool:
        """Whether `input_range` speaks of one of the model's inputs."""
        return self._of_input("input_range", input_name) is not UNSTATED_RANGE

    def states_type_of(self, input_name: str) -> bool:
        """Whether `input_type` speaks of one of the model's inputs."""
        return self.is_state(input_name) or self._of_input("input_type", input_name) is not None

    def unmatched_overrides(self, layer_names: Iterable[str]) -> list[str]:
        """The override patterns that match none of these layer names."""
        names = list(layer_names)
        return [p for p in self.overrides if not any(fnmatch.fnmatchcase(n, p) for n in names)]

    def get_layout_transformer(self: "BitPolicy | None" = None) -> NoReturn:
        """Refuses the policy in the place of a scheme; TFMOT asks the class for this, too."""
        raise TypeError(
            "scheme: received a BitPolicy, expected a scheme that has it; write "
            "scheme=sat_tf.SatQuantizeScheme(policy)."
        )

    def to_dict(self) -> dict[str, Any]:
        """The policy as plain values, for YAML and JSON; `BitPolicy(**d)` reads it back."""
        return {name: _listed(value) for name, value in self._all_fields().items()}

    def changes(self) -> dict[str, Any]:
        """The fields that are not as `BitPolicy()` has them; `BitPolicy(**d)` is the policy."""
        usual = BitPolicy()
        return {
            name: value
            for name, value in self._all_fields().items()
            if value != getattr(usual, name) or (name == "input_range" and self.states_input_range)
        }

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.changes().items())
        return f"{type(self).__name__}({fields})"

    def _all_fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


FIELDS = tuple(field.name for field in dataclasses.fields(BitPolicy) if field.name != "overrides")
# These speak of a model as a whole, or of its ends; all others can be those of one layer.
_OF_MODELS = {
    *("first_last_weight_bits", "first_last_weight_grid", "initial_classifier_clipping_level"),
    *("clipping_level_rate", "input_range", "input_type", "states", "target", "latent_start"),
    "unsupported",
}
PER_LAYER_FIELDS = tuple(name for name in FIELDS if name not in _OF_MODELS)


class _LayerFields(BaseModel):
    model_config = STRICT
    noun: ClassVar = "a field of one layer"


_TYPES: dict[str, Any] = {
    name: (hint, None)
    for name, hint in get_type_hints(BitPolicy, include_extras=True).items()
    if name in PER_LAYER_FIELDS
}
_LAYER_FIELDS = create_model("LayerFields", __base__=_LayerFields, **_TYPES)


def layer_fields(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the fields of one layer that are right, and what is wrong with the others."""
    fields = plain_numbers(fields)
    try:
        _LAYER_FIELDS.model_validate(fields)
    except ValidationError as error:
        wrong = {problem["loc"][0] for problem in error.errors()}
        right = {name: value for name, value in fields.items() if name not in wrong}
        return right, describe(error, _LAYER_FIELDS)
    return fields, []


def combination_problems(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with fields together that are right by themselves."""
    return pair_problems(values) + quantizer_problems(values)


def expect_policy(policy: Any) -> BitPolicy:
    """A policy as functions take it: `BitPolicy.mobile(policy)` of an integer, else `policy`."""
    if isinstance(policy, BitPolicy):
        return policy
    if is_bits(policy):
        return BitPolicy.mobile(policy)
    raise ValueError(
        f"policy={policy!r}: expected a sat_tf.BitPolicy, or an integer from 1 to 8; write "
        "BitPolicy(...), or BitPolicy(**policy) with the fields of a mapping."
    )


def _in_one_spelling(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The same fields with `input_range` for `input_max`, and what is wrong with that."""
    fields = dict(fields)
    if OLD_INPUT_RANGE not in fields:
        return fields, []
    ends, stated = (0.0, fields.pop(OLD_INPUT_RANGE)), fields.get("input_range", UNSTATED_RANGE)
    are_wrong = input_ranges.range_problem(stated) or input_ranges.range_problem(ends)
    is_other = are_wrong or input_ranges.plain_range(stated) != input_ranges.plain_range(ends)
    if stated is not UNSTATED_RANGE and is_other:
        return fields, [
            f"input_max={ends[1]!r}: received input_range={stated!r} as well, expected one of "
            "them; leave input_max out."
        ]
    return {**fields, "input_range": ends}, []


def _listed(value: Any) -> Any:
    """Tuples as lists and mappings as dictionaries, as YAML and JSON have them."""
    if isinstance(value, Mapping):
        return {name: _listed(element) for name, element in value.items()}
    return [_listed(element) for element in value] if isinstance(value, tuple) else value


def _overridden(values: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The policy's fields as those of one layer change them, wherever that layer stands."""
    fields = _with_own_options(fields)
    merged = {**values, **fields, "first_last_weight_bits": None, "first_last_weight_grid": None}
    return {**merged, "weight_grid": kernel_fields(values, fields).grid}


def _with_own_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields; a quantizer that is named for one layer has no options but its own."""
    options: dict[str, Any] = {
        f"{prefix}_options": {} for prefix in DEFAULT_QUANTIZERS if f"{prefix}_quantizer" in fields
    }
    return {**options, **fields}


# The fields of which not every quantizer takes all values.
_OF_QUANTIZERS = {"weight": {"weight_bits"}, "activation": {"clipping_gradient"}}


def _override_problems(overrides: Any, values: Mapping[str, Any]) -> list[str]:
    """Returns the problems of overrides in a policy with these values."""
    listed = []
    for pattern, fields in overrides.items():
        right, of_layer = layer_fields(fields)
        merged = _overridden(values, right)
        if "weight_bits" in right:  # else they depend on whether the layer is first or last
            of_layer += pair_problems(merged)
        for prefix in DEFAULT_QUANTIZERS:
            names = {f"{prefix}_quantizer", f"{prefix}_options"} | _OF_QUANTIZERS[prefix]
            if right.keys() & names:
                subset = {name: merged.get(name) for name in names}
                of_layer += quantizer_problems({**subset, "weight_grid": right.get("weight_grid")})
        listed += [behind(f"overrides[{pattern!r}]: ", problem) for problem in of_layer]
    return listed
