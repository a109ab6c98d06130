"""The fields of a policy: the values that each accepts, and the combinations that are wrong."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from pydantic import Field, PlainValidator

from sat_tf.core.grid import AUTOMATIC, GRIDS, WIDE_BITS, is_bits
from sat_tf.exact.tflite.input_range import plain_range, range_problem, type_problem
from sat_tf.messages import warn
from sat_tf.messages.validation import plain
from sat_tf.quantizers import quantizer_table
from sat_tf.quantizers.protocol import BITS_FIELDS, GRID_FIELDS, WeightRequest

# The range of an input where nobody gives one. It is known by its identity, so that `requantize`
# can tell a policy that leaves a model its range from one that gives it another.
UNSTATED_RANGE = (0.0, 255.0)
# The old name of input_range=(0, input_max).
OLD_INPUT_RANGE = "input_max"

# Levels and rates beyond it leave float32 a few steps later.
LARGEST = 1e9

GRID_NAMES = (*AUTOMATIC, *GRIDS)


def fitting_grid(grid: str, num_bits: int | None) -> str:
    """The grid itself, or "auto" where int8 does not hold its codes at these bits."""
    fits = grid not in GRIDS or not is_bits(num_bits) or GRIDS[grid].fits_int8(num_bits)
    return grid if fits else "auto"


class KernelFields(NamedTuple):
    """The bits and the grid of a layer's weights, and the fields of the policy that say them."""

    bits: Any  # 1 to 8; None: not rounded.
    grid: Any  # The grid that the weights are on.
    bits_field: str  # The name of the field that gives the bits.
    grid_field: str  # The name of the field that gives the grid.
    asked_grid: Any  # The grid in that field, whose codes int8 may not hold at these bits.


def kernel_fields(
    values: Mapping[str, Any], given: Mapping[str, Any] = MappingProxyType({}), *, end: bool = False
) -> KernelFields:
    """The rule of bits and grids: those that a policy gives to the weights of one layer.

    Fields of the layer itself hold wherever it stands. The first and the last linear layer have
    fields of their own, unless no weights are rounded; where these are None, those of all hold.
    `weight_grid` gives way to "auto" at other bits than `weight_bits`, where it does not fit int8.
    """
    names, (bits_field, end_bits), (grid_field, end_grid) = given.keys(), BITS_FIELDS, GRID_FIELDS
    is_end = end and bits_field not in names and values.get(bits_field, True) is not None
    is_fitted = grid_field not in names and (is_end or bits_field in names)
    if is_end and values.get(end_bits) is not None:
        bits_field = end_bits
    if is_end and is_fitted and values.get(end_grid) is not None:
        grid_field, is_fitted = end_grid, False
    fields = {**values, **given}
    bits, grid = fields.get(bits_field), fields.get(grid_field)
    fitted = fitting_grid(grid, bits) if is_fitted and isinstance(grid, str) else grid
    return KernelFields(bits, fitted, bits_field, grid_field, grid)


def _beyond_int8(grid: str, num_bits: int) -> str:
    return (
        f"{num_bits}-bit codes of the {grid} grid reach {GRIDS[grid].largest_code(num_bits)} and "
        "do not fit int8: the model could be trained, but not exported"
    )


_WITHOUT_FILE = "or stream_bits=None, as BitPolicy.paper has it, to train without exporting"
_OTHER_GRIDS = "use 'auto' (narrow at 8 bits, DoReFa below), or 7 bits"


# -- what a field accepts ----------------------------------------------------------------------


class Frozen(Mapping[str, Any]):
    """A mapping that cannot be changed, and has a hash."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {name: _frozen(value) for name, value in values.items()}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Frozen(value)
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def bits(none: str, *, fewest: int = 1) -> Any:
    """Returns the mark of bits that can be None, and what that means."""
    expected = f"an integer from {fewest} to 8, or None ({none})"
    return Field(ge=fewest, le=8, description=expected)


def bits_of_activations(none: str, *, fewest: int = 1) -> list[Any]:
    """Returns the marks of bits of activations, int8's or int16's, or None, and what that means."""
    expected = f"an integer from {fewest} to 8, 16, or None ({none})"

    def checked(value: Any) -> Any:
        is_int8 = is_bits(value) and value >= fewest
        if value is None or is_int8 or (type(value) is int and value == WIDE_BITS):
            return value
        raise ValueError(f"expected {expected}")

    return [PlainValidator(checked), Field(description=expected)]


def _options(value: Any) -> Frozen:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("expected a mapping of the quantizer's options by name")
    return Frozen(value)


def _range(value: Any) -> Any:
    if value is UNSTATED_RANGE:
        return value
    if problem := range_problem(value):
        raise ValueError(problem)
    return _frozen(plain_range(value))


def _type(value: Any) -> Any:
    if problem := type_problem(value):
        raise ValueError(problem)
    return _frozen(value)


def _overrides(value: Any) -> Any:
    """Freezes overrides; the policy that they belong to checks their fields."""
    if not isinstance(value, Mapping) or not all(
        isinstance(pattern, str) and isinstance(fields, Mapping)
        for pattern, fields in value.items()
    ):
        raise ValueError(
            "expected a mapping from layer-name patterns to fields, like "
            '{"conv_*": {"weight_bits": 8}}'
        )
    return Frozen({pattern: plain_numbers(fields) for pattern, fields in value.items()})


def _states(value: Any) -> Any:
    """Freezes states; the inputs that they name are looked up when a model is quantized."""
    if value is None:
        return None
    is_mapping = isinstance(value, Mapping)
    if not is_mapping or not all(isinstance(name, str) for pair in value.items() for name in pair):
        raise ValueError(
            "expected a mapping from outputs to the inputs that they are fed back to, by name, "
            'like {"state_out": "state_in"}, or None'
        )
    if twice := sorted({name for name in value.values() if len(feeding(value, name)) > 1}):
        outputs = " and ".join(feeding(value, twice[0]))
        raise ValueError(f"expected one output for each input; received {outputs} for {twice[0]}")
    return Frozen(value)


def feeding(states: Mapping[str, Any], input_name: str) -> list[str]:
    """The outputs that states feed back to an input."""
    return [output for output, name in states.items() if name == input_name]


def plain_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with NumPy's numbers as Python's."""
    return {name: plain(value) for name, value in values.items()}


Number = Annotated[int | float, Field(gt=0, le=LARGEST)]
_POSITIVE = f"a positive number up to {LARGEST:g}"
Rate = Annotated[Number, Field(description=f"{_POSITIVE}: 1 is the learning rate of the weights")]
Level = Annotated[
    Number | None, Field(description=f"{_POSITIVE}, or None (what the model's weights tell)")
]
Name = Annotated[str, Field(description="the name of a quantizer")]
Options = Annotated[Mapping[str, Any], PlainValidator(_options)]
Range = Annotated[Any, PlainValidator(_range)]
InputType = Annotated[Any, PlainValidator(_type)]
States = Annotated[Mapping[str, str] | None, PlainValidator(_states)]
Overrides = Annotated[Mapping[str, Mapping[str, Any]], PlainValidator(_overrides)]


# -- combinations ------------------------------------------------------------------------------


def pair_problems(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with bits, grid and quantizer of one layer, one line a problem."""
    problems = []
    if values.get("activation_bits") == WIDE_BITS and values.get("stream_bits", 8) is None:
        problems.append(
            "activation_bits=16 with stream_bits=None: codes of 16 bits show the last bits of "
            "float streams, in which machines differ; give stream_bits as well."
        )
    # Float activations or streams are the paper's setting, for experiments; integers are for files.
    is_for_files = all(values.get(name) is not None for name in ("activation_bits", "stream_bits"))
    for bits, grid, bits_field, grid_field, _ in _kernels(values):
        both = f"{bits_field}={bits} with {grid_field}={grid!r}"
        if bits is None:
            continue
        if grid in GRIDS and bits < GRIDS[grid].fewest_bits:
            problems.append(
                f"{both}: that grid has a single value at {bits} bit; use {grid_field}='dorefa', "
                f"or {GRIDS[grid].fewest_bits} bits and more."
            )
        elif not is_for_files:
            continue
        elif grid in GRIDS and not GRIDS[grid].fits_int8(bits):
            problems.append(f"{both}: {_beyond_int8(grid, bits)}; {_OTHER_GRIDS}; {_WITHOUT_FILE}.")
        elif problem := _codes_problem(values, bits, grid):
            problems.append(
                f"{both} and weight_quantizer={values['weight_quantizer']!r}: {problem}"
            )
    return problems


def _codes_problem(values: Mapping[str, Any], bits: int, grid: Any) -> str | None:
    """Why int8 does not hold the codes of the quantizer that is named; None where it does."""
    name, options = values.get("weight_quantizer"), values.get("weight_options", {})
    if name is None or quantizer_table.quantizer_problems("weight", name, values):
        return None
    request = WeightRequest(num_bits=bits, grid=grid, options=options)
    try:
        quantizer = quantizer_table.make_weight_quantizer(name, request)
    except ValueError as error:
        return str(error)
    if quantizer.fits_int8:
        return None
    return (
        f"its codes reach {quantizer.largest_code} and do not fit int8: the model could be "
        f"trained, but not exported; use {quantizer.int8_remedy}; {_WITHOUT_FILE}."
    )


# The quantizers that options are for where a policy names none.
DEFAULT_QUANTIZERS = {"weight": "dorefa", "activation": "pact"}

# These quantize weights where a policy leaves it open, by the fewest bits: the best that are known,
# by `benchmarks/results/default_weights.csv`; docs/measurements/methods.md says what was tried.
# DoReFa's range, the largest weight, keeps most of a model that is not trained. At 2 bits training
# is needed in any case, and a range by the mean magnitude learns more. 1 bit was not measured.
BEST_WEIGHTS = {3: "dorefa", 2: "l1", 1: "dorefa"}


def known_weights(values: Mapping[str, Any]) -> str:
    """The weight quantizer of a layer: that of its fields, or the best known at its bits.

    Options without a name are DoReFa's, and so are a grid by its name, no rescaling and a gradient
    through the maximum. Networks that train from scratch have its weights, too.
    """
    if values.get("weight_quantizer") is not None:
        return values["weight_quantizer"]
    bits, default = values.get("weight_bits"), DEFAULT_QUANTIZERS["weight"]
    from_scratch = values.get("latent_start") == "as_is"
    is_asked = (
        values.get("weight_options"),
        values.get("rescale") == "none",
        not values.get("detach_max", True),
        values.get("weight_grid", "auto") not in AUTOMATIC,
    )
    if not is_bits(bits) or from_scratch or any(is_asked):
        return default
    return BEST_WEIGHTS[max(fewest for fewest in BEST_WEIGHTS if fewest <= bits)]


def quantizer_problems(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with names of quantizers, and what these say of their options."""
    problems = []
    for prefix, default in DEFAULT_QUANTIZERS.items():
        name, options = values.get(f"{prefix}_quantizer"), values.get(f"{prefix}_options", {})
        name = default if name is None else name
        if name != default or options:
            problems += quantizer_table.quantizer_problems(prefix, name, values)
    return problems


def _kernels(values: Mapping[str, Any]) -> dict[KernelFields, None]:
    """Collects what these fields say of weights inside a model and at its ends, each once."""
    return dict.fromkeys(kernel_fields(values, end=end) for end in (False, True))


def warn_of(*settings: Mapping[str, Any]) -> None:
    """Warns once of each grid in these policy fields that trains badly at its bits."""
    kernels = [kernel for fields in settings for kernel in _kernels(fields)]
    used = {(kernel.grid, kernel.bits) for kernel in kernels if kernel.bits is not None}
    for grid, row in GRIDS.items():
        beyond: dict[int | None, str] = {
            bits: f"weight_grid={grid!r}: {_beyond_int8(grid, bits)}; to export it, {_OTHER_GRIDS}"
            for bits in range(row.fewest_bits, 9)
            if not row.fits_int8(bits)
        }
        for caution_bits, text in {**beyond, **row.cautions}.items():
            if any(name == grid and caution_bits in (None, bits) for name, bits in used):
                warn(text)
