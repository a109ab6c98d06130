"""Fields of a policy: how one says what it accepts, and which combinations are wrong."""

import dataclasses
import difflib
import numbers
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sat_tf.core.grid import AUTOMATIC, GRIDS, Grid, is_bits
from sat_tf.messages import warn
from sat_tf.quantizers import table
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
    """The grid itself, or "auto" where int8 does not hold its codes at these bits.

    >>> fitting_grid("rounded", 7), fitting_grid("rounded", 8)
    ('rounded', 'auto')
    """
    fits = grid not in GRIDS or not is_bits(num_bits) or GRIDS[grid].fits_int8(num_bits)
    return grid if fits else "auto"


class KernelFields(NamedTuple):
    """The bits and the grid of a layer's weights, and the fields of the policy that say them.

    Attributes:
        bits: 1 to 8; None: not rounded.
        grid: that the weights are on.
        bits_field: the name of the field that gives the bits.
        grid_field: the name of the field that gives the grid.
        asked_grid: what that field says, whose codes int8 may not hold at these bits.
    """

    bits: Any
    grid: Any
    bits_field: str
    grid_field: str
    asked_grid: Any


def kernel_fields(
    values: Mapping[str, Any],
    given: Mapping[str, Any] = MappingProxyType({}),
    *,
    end: bool = False,
) -> KernelFields:
    """The rule of bits and grids: what a policy says of the weights of one layer.

    What is given for the layer itself holds wherever it stands. The first and the last linear layer
    have fields of their own, unless no weights are rounded; what these leave open is as elsewhere.
    `weight_grid` gives way to "auto" at other bits than `weight_bits`, where it does not fit int8.

    Args:
        values: fields of the policy.
        given: fields for the layer alone, which are stronger.
        end: it is a first or last linear layer.

    >>> policy = {"weight_bits": 4, "first_last_weight_bits": 8, "weight_grid": "rounded"}
    >>> kernel_fields(policy, end=True)[:3]
    (8, 'auto', 'first_last_weight_bits')
    >>> kernel_fields(policy, {"weight_bits": 7}, end=True)[:3]
    (7, 'rounded', 'weight_bits')
    """
    own, (bits_field, end_bits), (grid_field, end_grid) = given.keys(), BITS_FIELDS, GRID_FIELDS
    is_end = end and bits_field not in own and values.get(bits_field, True) is not None
    is_fitted = grid_field not in own and (is_end or bits_field in own)
    if is_end and values.get(end_bits) is not None:
        bits_field = end_bits
    if is_end and is_fitted and values.get(end_grid) is not None:
        grid_field, is_fitted = end_grid, False
    found = {**values, **given}
    bits, grid = found.get(bits_field), found.get(grid_field)
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


@dataclasses.dataclass(frozen=True)
class Accepted:
    """The values that a field of the policy accepts.

    Attributes:
        problem_of: says what is wrong with a value; None where it is accepted.
        expected: the same in words, of a field that takes one of several names with these.
        per_layer: whether one layer can have a value of its own.
    """

    problem_of: Callable[[Any], str | None]
    expected: str = ""
    per_layer: bool = False

    def find_problem(self, value: Any) -> str | None:
        """Says what is wrong with a value, and what may be meant; None where it is accepted."""
        problem = self.problem_of(value)
        if not problem:
            return None
        names = self.expected.removeprefix("one of ").split(", ")
        near = difflib.get_close_matches(value, names) if isinstance(value, str) else []
        return f"{problem}.{f' Did you mean {near[0]}?' if near else ''}"


def field(
    default: Any, accepts: Callable[[Any], bool], expected: str, *, per_layer: bool = False
) -> Any:
    """A field of a policy, with all that is known of it; a mapping is its default as a copy."""

    def problem_of(value: Any) -> str | None:
        return None if accepts(value) else f"expected {expected}"

    metadata = {"accepted": Accepted(problem_of, expected, per_layer)}
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def bits_field(
    default: int | None, meaning: str, *, fewest: int = 1, per_layer: bool = True
) -> Any:
    """A field of bits, of which None has a meaning."""
    expected = f"an integer from {fewest} to 8, or None ({meaning})"
    return field(
        default,
        lambda value: value is None or is_bits(value, fewest),
        expected,
        per_layer=per_layer,
    )


def name_field(default: str, *names: str, per_layer: bool = True) -> Any:
    """A field that takes one of several names."""
    expected = f"one of {', '.join(names)}"
    return field(default, lambda value: value in names, expected, per_layer=per_layer)


def truth_field(default: bool) -> Any:
    """A field of one layer that is True or False."""
    return field(default, lambda value: isinstance(value, bool), "True or False", per_layer=True)


def level_field(*, per_layer: bool) -> Any:
    """A field of a clipping level, of which None leaves it to the model."""
    expected = f"a positive number up to {LARGEST:g}, or None (what the model's weights tell)"
    return field(
        None, lambda value: value is None or is_positive(value), expected, per_layer=per_layer
    )


def is_name(value: Any) -> bool:
    """Whether a value can be the name of a quantizer."""
    return isinstance(value, str)


def is_options(value: Any) -> bool:
    """Whether a value can be the options of a quantizer."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def plain_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with NumPy's numbers as Python's, which any file format can hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return value
        return int(value) if isinstance(value, numbers.Integral) else float(value)

    return {name: plain(value) for name, value in values.items()}


def is_positive(value: Any) -> bool:
    """Whether a value is a number above 0 and within `LARGEST`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value <= LARGEST


# -- combinations ------------------------------------------------------------------------------


def pair_problems(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with combinations in one layer, one line a problem.

    Of bits and grid, and of both with the quantizer: what could be trained, but not exported, is
    refused unless the policy is one for training alone.
    """
    problems = []
    for bits, grid, bits_field, grid_field, _ in _kernels(values):
        both = f"{bits_field}={bits} with {grid_field}={grid!r}"
        if bits is None:
            continue
        if grid in GRIDS and bits < GRIDS[grid].fewest_bits:
            problems.append(
                f"{both}: that grid has a single value at {bits} bit; use {grid_field}='dorefa', "
                f"or {GRIDS[grid].fewest_bits} bits and more."
            )
        elif not _is_for_files(values):
            continue
        elif grid in GRIDS and not GRIDS[grid].fits_int8(bits):
            problems.append(f"{both}: {_beyond_int8(grid, bits)}; {_OTHER_GRIDS}; {_WITHOUT_FILE}.")
        elif problem := _codes_problem(values, bits, grid):
            problems.append(
                f"{both} and weight_quantizer={values['weight_quantizer']!r}: {problem}"
            )
    return problems


def _is_for_files(values: Mapping[str, Any]) -> bool:
    """Whether the fields of a policy are for models that are exported.

    Float activations or streams are the paper's setting, for experiments; integers are for files.
    """
    return all(values.get(name) is not None for name in ("activation_bits", "stream_bits"))


def _codes_problem(values: Mapping[str, Any], bits: int, grid: Any) -> str | None:
    """Why int8 does not hold the codes of the quantizer that is named; None where it does."""
    name, options = values.get("weight_quantizer"), values.get("weight_options", {})
    is_known = is_name(name) and is_options(options)
    if not is_known or table.quantizer_problems("weight", str(name), values):
        return None
    request = WeightRequest(num_bits=bits, grid=grid, options=options)
    try:
        quantizer = table.make_weight_quantizer(str(name), request)
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

    >>> known_weights({"weight_bits": 8}), known_weights({"weight_bits": 2})
    ('dorefa', 'l1')
    """
    if values.get("weight_quantizer") is not None:
        return values["weight_quantizer"]
    bits, own = values.get("weight_bits"), DEFAULT_QUANTIZERS["weight"]
    from_scratch = values.get("latent_start") == "as_is"
    is_asked = (
        values.get("weight_options"),
        values.get("rescale") == "none",
        not values.get("detach_max", True),
        values.get("weight_grid", "auto") not in AUTOMATIC,
    )
    if not is_bits(bits) or from_scratch or any(is_asked):
        return own
    return BEST_WEIGHTS[max(fewest for fewest in BEST_WEIGHTS if fewest <= bits)]


def quantizer_problems(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with names of quantizers, and what these say of their options."""
    problems = []
    for kind, default in DEFAULT_QUANTIZERS.items():
        name, options = values.get(f"{kind}_quantizer"), values.get(f"{kind}_options", {})
        name = default if name is None else name
        if not is_name(name) or not is_options(options) or (name == default and not options):
            continue
        problems += table.quantizer_problems(kind, name, values)
    return problems


def _kernels(values: Mapping[str, Any]) -> dict[KernelFields, None]:
    """Collects what these fields say of weights inside a model and at its ends, each once.

    Values that are wrong count as left out: their own fields say what is wrong with them.
    """
    known = {
        name: value
        for names, is_right in ((BITS_FIELDS, is_bits), (GRID_FIELDS, GRID_NAMES.__contains__))
        for name in names
        if name in values and ((value := values[name]) is None or is_right(value))
    }
    return dict.fromkeys(kernel_fields(known, end=end) for end in (False, True))


def warn_of(*settings: Mapping[str, Any]) -> None:
    """Warns once of each grid in these policy fields that trains badly at its bits."""
    kernels = [kernel for fields in settings for kernel in _kernels(fields)]
    used = {(kernel.grid, kernel.bits) for kernel in kernels if kernel.bits is not None}
    for grid, row in GRIDS.items():
        for caution_bits, text in _cautions(row).items():
            if any(name == grid and caution_bits in (None, bits) for name, bits in used):
                warn(text)


def _cautions(grid: Grid) -> dict[int | None, str]:
    beyond = {
        bits: f"weight_grid={grid.name!r}: {_beyond_int8(grid.name, bits)}; to export it, "
        f"{_OTHER_GRIDS}"
        for bits in range(grid.fewest_bits, 9)
        if not grid.fits_int8(bits)
    }
    return beyond | dict(grid.cautions)
