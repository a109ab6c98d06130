"""The ranges of image inputs in a certificate: what tells that they are those of the training.

A file computes what its model does in the range that the policy states, right or wrong: no code
says which one the float model was trained with. So a certificate says what has.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from sat_tf.presentation.tables import Marked

# Accuracy is clearly above that of one class for all, by so many standard errors and images.
_CLEAR_ERRORS, _FEWEST_IMAGES = 3.0, 8


@dataclasses.dataclass(frozen=True)
class CheckedRange:
    """The range of an image input."""

    input: str  # Its name.
    range: str  # The real values of the pixels 0 and 255.
    # What tells that the model was trained with it, in words; "" where nothing does.
    checked_by: str = ""
    problem: str = ""  # Why it is certainly another one; "" where it may be right.

    @property
    def statement(self) -> Marked:
        """Says what has checked the range, or that nothing could."""
        pixels = f"Input range of {self.input}: the pixels 0 and 255 stand for {self.range}"
        if self.problem:
            return Marked(f"{pixels}, though {self.problem}", "bad")
        if self.checked_by:
            return Marked(f"{pixels}, as checked by {self.checked_by}.", "plain")
        return Marked(
            f"{pixels}. Nothing here could check that the float model was trained with it: give "
            "labels, whose accuracy tells, or a float model that has BatchNormalization.",
            "watch",
        )


def kind_of_ranges(ranges: Iterable[CheckedRange]) -> str:
    """The kind of a `Marked` about all ranges: "good", "watch" or "bad"."""
    kinds = {one.statement.kind for one in ranges}
    return next((kind for kind in ("bad", "watch") if kind in kinds), "good")


def checked_by_accuracy(
    ranges: Sequence[CheckedRange], labels: Sequence[np.ndarray | None], top1: Sequence[float]
) -> list[CheckedRange]:
    """The ranges, of which an only one is checked by accuracy clearly above that of guessing."""
    given = [one[one >= 0] for one in labels if one is not None]
    is_open = len(ranges) == 1 and not (ranges[0].checked_by or ranges[0].problem)
    for classes, share in zip(given, top1, strict=True) if is_open else ():
        count = max(classes.size, 1)
        guessed = np.max(np.bincount(classes.reshape(-1).astype(np.int64)), initial=0) / count
        margin = max(_FEWEST_IMAGES / count, _CLEAR_ERRORS * np.sqrt(guessed / count))
        if share > guessed + margin:
            how = f"accuracy, {100 * share:.1f} % where one class for all has {100 * guessed:.1f} %"
            return [dataclasses.replace(ranges[0], checked_by=how)]
    return list(ranges)
