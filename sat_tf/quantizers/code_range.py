"""The codes of a quantizer: which integers, and what one of them is worth."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sat_tf.core import grid
from sat_tf.core.asymmetric import step_and_zero
from sat_tf.quantizers.base import SatQuantizer
from sat_tf.quantizers.functions import OffsetQuantizer, UnitQuantizer
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer


@dataclasses.dataclass(frozen=True)
class CodeRange:
    """Codes lowest..lowest + steps, each worth `step`.

    Attributes:
        step: the real value of one code, a float32 scalar tensor.
        lowest: the lowest code, a float32 scalar tensor that holds an integer.
        steps: how many steps there are from the lowest code to the highest.
    """

    step: tf.Tensor
    lowest: tf.Tensor
    steps: int


def has_codes(quantizer: SatQuantizer | None) -> bool:
    """Whether a quantizer rounds to codes; observers of ranges and marks of images do not."""
    return type(quantizer) in _RANGES


def code_range(quantizer: SatQuantizer, clipping_level: Any = None) -> CodeRange:
    """The codes of a quantizer at a clipping level, by the arithmetic of its forward pass.

    Args:
        quantizer: one that `has_codes`.
        clipping_level: α or r, a float32 scalar tensor or variable; None for a `UnitQuantizer`,
            which has none.

    Raises:
        KeyError: the quantizer has no codes.

    >>> found = code_range(StreamQuantizer(num_bits=3), tf.constant(6.0))
    >>> float(found.step), float(found.lowest), found.steps
    (2.0, -3.0, 6)
    """
    level = None if clipping_level is None else tf.convert_to_tensor(clipping_level)
    return _RANGES[type(quantizer)](quantizer, level)


def _unsigned(num_bits: int, highest: tf.Tensor) -> CodeRange:
    steps = grid.levels(num_bits)
    return CodeRange(highest / float(steps), tf.constant(0.0), steps)


def _symmetric(num_bits: int, highest: tf.Tensor) -> CodeRange:
    steps = grid.levels(num_bits, "narrow")
    return CodeRange((highest + highest) / float(steps), tf.constant(-steps / 2), steps)


def _unit(quantizer: UnitQuantizer, _: None) -> CodeRange:
    of = _symmetric if quantizer.signed else _unsigned
    return of(quantizer.num_bits, tf.constant(1.0))


def _offset(quantizer: OffsetQuantizer, level: tf.Tensor) -> CodeRange:
    steps = grid.levels(quantizer.num_bits)
    step, below = step_and_zero(level, steps, quantizer.lowest, quantizer.share)
    return CodeRange(step, -below, steps)


_RANGES: dict[type, Callable[[Any, Any], CodeRange]] = {
    PactQuantizer: lambda quantizer, level: _unsigned(quantizer.num_bits, level),
    StreamQuantizer: lambda quantizer, level: _symmetric(quantizer.num_bits, level),
    UnitQuantizer: _unit,
    OffsetQuantizer: _offset,
}
