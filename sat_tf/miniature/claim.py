"""What the paper claims, and what has to come out here for a claim to show."""

import dataclasses
import enum
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from sat_tf.paper.record import Outcome

# Top-1 in percent, by row and seed.
Top1 = Mapping[str, Mapping[int, float]]


class Verdict(enum.Enum):
    """What came of a claim."""

    SHOWS = "shows"
    DOES_NOT_SHOW = "does not show"
    NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """An ordering of rows.

    The difference is the sum of top-1 over the rows `plus`, less that over the rows `minus`. That
    something is better (`low` is 0 or more) shows where the mean over the seeds lies in
    [`low`, `high`], and each seed is above 0. That two are alike (`low` is negative) shows where
    each seed lies in that range: seeds that contradict each other agree on nothing.

    Attributes:
        text: what is claimed, as a sentence.
        source: where the paper has it; "" where it is a question of ours.
        printed: what the paper prints, in words.
        plus: names of rows.
        minus: names of rows, as many.
        low: the least difference, in points of top-1.
        high: the largest.
        checked: whether `sat-tf miniature` fails where it does not show: those that showed with a
            wide margin whenever they were tried in this setting.
    """

    text: str
    source: str
    printed: str
    plus: tuple[str, ...]
    minus: tuple[str, ...]
    low: float = 0.0
    high: float = math.inf
    checked: bool = False

    @property
    def asks(self) -> str:
        """What is asked of the difference, in short.

        >>> claim = Claim(text="", source="", printed="", plus=("a",), minus=("b",), low=-2, high=2)
        >>> claim.asks, dataclasses.replace(claim, high=math.inf).asks
        ('within ±2', '≥ −2')
        """
        if self.low == -self.high:
            return f"within ±{self.high:g}"
        if math.isfinite(self.high):
            return f"{signed(self.low, 'g')} to {signed(self.high, 'g')}"
        if self.low == 0:
            return "above 0"
        return f"≥ {self.low:g}".replace("-", "−")


@dataclasses.dataclass(frozen=True)
class Judged:
    """A claim with what was measured.

    Attributes:
        claim: see `Claim`.
        differences: in points of top-1, by seed, of the seeds that all its rows have.
        verdict: see `judge`.
    """

    claim: Claim
    differences: Mapping[int, float]
    verdict: Verdict

    @property
    def measured(self) -> str:
        """The mean, with standard deviation and number of several seeds; "" where nothing is run.

        >>> claim = Claim(text="", source="", printed="", plus=("a",), minus=("b",))
        >>> Judged(claim, {0: 4.0, 1: 6.0}, Verdict.SHOWS).measured
        '+5.0 ± 1.4 (2 seeds)'
        """
        values = list(self.differences.values())
        if not values:
            return ""
        mean = signed(statistics.fmean(values), ".1f")
        if len(values) == 1:
            return f"{mean} (1 seed)"
        return f"{mean} ± {statistics.stdev(values):.1f} ({len(values)} seeds)"


def judge(claim: Claim, top1: Top1) -> Judged:
    """Compares what a claim says with what was measured.

    Args:
        claim: what is claimed.
        top1: see `by_row`.

    Returns:
        The verdict, over the seeds that have all the rows; not run where none has.
    """
    rows = [top1.get(row, {}) for row in (*claim.plus, *claim.minus)]
    seeds = sorted(set.intersection(*(set(row) for row in rows)))
    differences = {
        seed: sum(top1[row][seed] for row in claim.plus)
        - sum(top1[row][seed] for row in claim.minus)
        for seed in seeds
    }
    if not differences:
        return Judged(claim, {}, Verdict.NOT_RUN)
    shows = _shows(claim, list(differences.values()))
    return Judged(claim, differences, Verdict.SHOWS if shows else Verdict.DOES_NOT_SHOW)


def _shows(claim: Claim, differences: Sequence[float]) -> bool:
    if claim.low < 0:
        return all(claim.low <= difference <= claim.high for difference in differences)
    return claim.low <= statistics.fmean(differences) <= claim.high and min(differences) > 0


def by_row(outcomes: Iterable[Outcome], changes: str = "") -> dict[str, dict[int, float]]:
    """Top-1 of the outcomes on printed characters, in percent.

    Args:
        outcomes: of all kinds.
        changes: only of runs with these settings besides the row.
    """
    found: dict[str, dict[int, float]] = {}
    for outcome in outcomes:
        if (outcome.data, outcome.changes) == ("glyphs", changes):
            found.setdefault(outcome.row, {})[outcome.seed] = outcome.top1
    return found


def signed(value: float, form: str) -> str:
    """A number with its sign, and a minus as wide as the plus.

    >>> signed(3.25, ".1f"), signed(-3.25, ".1f")
    ('+3.2', '−3.2')
    """
    return f"{value:+{form}}".replace("-", "−")
