"""The largest range that a form can have, where none was observed."""

from collections.abc import Callable

import numpy as np

from sat_tf.export.forms import (
    ConcatenationForm,
    ConstantSumForm,
    Form,
    LinearForm,
    PairForm,
    RectifiedForm,
    SumForm,
)
from sat_tf.export.graph import Codes
from sat_tf.export.pairs import PairKind

Range = tuple[float, float]


def worst_range(form: Form, codes_of: Callable[[str], Codes]) -> Range:
    """The smallest and the largest value that a form can have.

    Args:
        form: what is computed.
        codes_of: the codes of the tensors that it reads.
    """
    if isinstance(form, LinearForm):
        return form.worst_range(codes_of(form.source))
    if isinstance(form, RectifiedForm):
        return 0.0, max(worst_range(form.form, codes_of)[1], 0.0)
    if isinstance(form, ConcatenationForm):
        low, high = zip(*(worst_range(part.form, codes_of) for part in form.parts), strict=True)
        return min(low), max(high)
    if isinstance(form, SumForm):
        ranges = np.array([codes_of(source).real_range for source in form.sources])
        low, high = ranges.sum(axis=0) / form.divisor
        return float(low), float(high)
    if isinstance(form, ConstantSumForm):
        ends = codes_of(form.source).real_range
        return ends[0] + float(np.min(form.values)), ends[1] + float(np.max(form.values))
    if isinstance(form, PairForm):
        return _of_pairs(form.kind, [codes_of(source).real_range for source in form.sources])
    return codes_of(form.source).real_range


def _of_pairs(kind: PairKind, ranges: list[Range]) -> Range:
    """The range of a difference or a product of several tensors, taken one after the other."""
    low, high = ranges[0]
    for smallest, largest in ranges[1:]:
        if kind is PairKind.DIFFERENCE:
            low, high = low - largest, high - smallest
        else:
            ends = np.outer((low, high), (smallest, largest))
            low, high = float(np.min(ends)), float(np.max(ends))
    return low, high
