"""The fields of a policy: what each accepts, and which combinations are wrong."""

import dataclasses
import difflib
import importlib
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sat_tf.core.clipping_gradients import CLIPPING_GRADIENTS
from sat_tf.core.grid_table import AUTOMATIC, GRIDS, Grid, is_bits
from sat_tf.messages import did_you_mean, warn
from sat_tf.quantizers.input_range import range_problem, type_problem

# What a model is fed where nobody says so. Known by its identity, so that `requantize` can tell a
# policy that leaves a model its range from one that gives it another.
UNSTATED_RANGE = (0.0, 255.0)
# The old name of input_range=(0, input_max).
OLD_INPUT_RANGE = "input_max"

# Levels and rates beyond it leave float32 a few steps later.
_LARGEST = 1e9

GRID_NAMES = (*AUTOMATIC, *GRIDS)


def fitting_grid(grid: str, num_bits: int | None) -> str:
    """The grid itself, or "auto" where int8 does not hold its codes at these bits.

    >>> fitting_grid("rounded", 7), fitting_grid("rounded", 8)
    ('rounded', 'auto')
    """
    fits = grid in AUTOMATIC or num_bits is None or GRIDS[grid].fits_int8(num_bits)
    return grid if fits else "auto"


def _beyond_int8(grid: str, num_bits: int) -> str:
    return (
        f"{num_bits}-bit codes of the {grid} grid reach {GRIDS[grid].largest_code(num_bits)} and "
        "do not fit int8: the model could be trained, but not exported"
    )


_OTHER_GRIDS = "use 'auto' (narrow at 8 bits, DoReFa below), or 7 bits"


@dataclasses.dataclass(frozen=True)
class _Field:
    """What a field of the policy accepts."""

    accepts: Callable[[Any], bool]
    expected: str
    per_layer: bool = False

    def find_problem(self, value: Any) -> str | None:
        """What is wrong with a value; None where it is accepted."""
        return None if self.accepts(value) else f"expected {self.expected}."


@dataclasses.dataclass(frozen=True)
class _InputField(_Field):
    """A field of inputs, whose values are wrong in ways of their own."""

    problem_of: Callable[[Any], str | None] = range_problem

    def find_problem(self, value: Any) -> str | None:
        problem = self.problem_of(value)
        return problem and f"{problem}."


def plain_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with NumPy's numbers as Python's, which any file format can hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return value
        return int(value) if isinstance(value, numbers.Integral) else float(value)

    return {name: plain(value) for name, value in values.items()}


def is_positive(value: Any) -> bool:
    """Whether a value is a number above 0 and within `_LARGEST`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value <= _LARGEST


def _is_level(value: Any) -> bool:
    return value is None or is_positive(value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _is_options(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


_QUANTIZER_NAME = "the name of a quantizer"
_OPTIONS = "a mapping of the quantizer's options by name"
_LEVEL = f"a positive number up to {_LARGEST:g}, or None (what the model's weights tell)"


def _bits_or_none(meaning: str, fewest: int = 1) -> _Field:
    return _Field(
        lambda value: value is None or is_bits(value, fewest),
        f"an integer from {fewest} to 8, or None ({meaning})",
        per_layer=True,
    )


def _one_of(*names: str, per_layer: bool = True) -> _Field:
    return _Field(lambda value: value in names, f"one of {', '.join(names)}", per_layer)


FIELDS: dict[str, _Field] = {
    "weight_bits": _bits_or_none("not rounded"),
    "activation_bits": _bits_or_none("activations stay float"),
    "first_last_weight_bits": dataclasses.replace(
        _bits_or_none("same as weight_bits"), per_layer=False
    ),
    "stream_bits": _bits_or_none("streams stay float", fewest=2),
    "requantize_streams": _Field(
        lambda value: isinstance(value, bool), "True or False", per_layer=True
    ),
    "weight_grid": _one_of(*GRID_NAMES),
    "first_last_weight_grid": _Field(
        lambda value: value is None or value in GRID_NAMES,
        f"one of {', '.join(GRID_NAMES)}, or None (weight_grid, where int8 holds its codes)",
    ),
    "weight_range": _one_of("layer", "channel"),
    "detach_max": _Field(lambda value: isinstance(value, bool), "True or False", per_layer=True),
    "rescale": _one_of("constant", "stddev", "none"),
    "clipping_gradient": _one_of(*CLIPPING_GRADIENTS),
    "clipping_level_rate": _Field(
        is_positive, f"a positive number up to {_LARGEST:g}: 1 is the learning rate of the weights"
    ),
    "initial_clipping_level": _Field(_is_level, _LEVEL, per_layer=True),
    "initial_classifier_clipping_level": _Field(_is_level, _LEVEL),
    "weight_quantizer": _Field(_is_name, _QUANTIZER_NAME, per_layer=True),
    "weight_options": _Field(_is_options, _OPTIONS, per_layer=True),
    "activation_quantizer": _Field(_is_name, _QUANTIZER_NAME, per_layer=True),
    "activation_options": _Field(_is_options, _OPTIONS, per_layer=True),
    "input_range": _InputField(lambda value: range_problem(value) is None, "a range"),
    "input_type": _InputField(
        lambda value: type_problem(value) is None, "a type", problem_of=type_problem
    ),
    "latent_start": _one_of("keep_function", "as_is", per_layer=False),
    "unsupported": _one_of("error", "float", per_layer=False),
}

PER_LAYER_FIELDS = tuple(name for name, field in FIELDS.items() if field.per_layer)


def check_fields(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with these policy fields, one line a problem."""
    return field_problems(values) + pair_problems(values) + quantizer_problems(values)


def field_problems(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with single fields, one line a problem."""
    problems = []
    for name, value in values.items():
        field = FIELDS.get(name)
        if field is None:
            known = (*FIELDS, "overrides")
            problems.append(f"{name} is not a field. {did_you_mean(name, known)}")
        elif problem := field.find_problem(value):
            hint = ""
            if isinstance(value, str) and (near := difflib.get_close_matches(value, _names(name))):
                hint = f" Did you mean {near[0]}?"
            problems.append(f"{name}={value!r}: {problem}{hint}")
    return problems


def pair_problems(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with combinations of bits and grid in one layer, one line a problem."""
    problems = []
    # Float activations or streams are the paper's setting, for experiments; integers are for files.
    integers = all(values.get(name) is not None for name in ("activation_bits", "stream_bits"))
    for bits_name, grid_name, bits, grid in _pairs(values):
        both = f"{bits_name}={bits} with {grid_name}={grid!r}"
        if bits is not None and grid not in AUTOMATIC and bits < GRIDS[grid].fewest_bits:
            problems.append(
                f"{both}: that grid has a single value at {bits} bit; use {grid_name}='dorefa', or "
                f"{GRIDS[grid].fewest_bits} bits and more."
            )
        elif integers and fitting_grid(grid, bits) != grid:
            problems.append(
                f"{both}: {_beyond_int8(grid, bits)}; {_OTHER_GRIDS}; or stream_bits=None, as "
                "BitPolicy.paper has it, to train without exporting."
            )
    return problems


# Those of a policy that names none; they take no options.
DEFAULT_QUANTIZERS = {"weight": "dorefa", "activation": "pact"}


def quantizer_problems(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the names of quantizers, and what these say of their options."""
    problems = []
    for kind, default in DEFAULT_QUANTIZERS.items():
        name, options = values.get(f"{kind}_quantizer", default), values.get(f"{kind}_options", {})
        if not _is_name(name) or not _is_options(options) or (name == default and not options):
            continue
        # Only now, because quantizers need TensorFlow, and policies of the default ones do not.
        # And TFMOT first: Keras learns of our layers while that is imported, for which the table
        # must be there.
        importlib.import_module("tensorflow_model_optimization")
        table = importlib.import_module("sat_tf.quantizers.table")
        problems += getattr(table, f"{kind}_quantizer_problems")(name, options)
        problems += getattr(table, f"{kind}_field_problems")(name, values)
    return problems


def _pairs(values: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """Names and values of the bits and grids of a layer, as far as these fields tell."""
    named = ("weight_bits", "first_last_weight_bits", "weight_grid", "first_last_weight_grid")
    known = {name: values.get(name) for name in named}
    # What a field says against its value is said elsewhere.
    valid = {name: None if FIELDS[name].find_problem(v) else v for name, v in known.items()}
    bits, end_bits, grid, end_grid = valid.values()
    if isinstance(grid, str):
        yield "weight_bits", "weight_grid", bits, grid
    if isinstance(end_grid, str):
        name = "weight_bits" if end_bits is None else "first_last_weight_bits"
        yield name, "first_last_weight_grid", bits if end_bits is None else end_bits, end_grid
    elif isinstance(grid, str) and end_bits is not None:
        yield "first_last_weight_bits", "weight_grid", end_bits, fitting_grid(grid, end_bits)


def warn_of(*settings: Mapping[str, Any]) -> None:
    """Warns once of each grid in these policy fields that trains badly at its bits."""
    used: set[tuple[Any, Any]] = set()
    for fields in settings:
        if fields.get("weight_bits") is not None:  # else first and last layer are not rounded too
            used |= {(grid, bits) for _, _, bits, grid in _pairs(fields)}
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


def _names(field: str) -> list[str]:
    return FIELDS[field].expected.removeprefix("one of ").split(", ")
