"""The paper's claims, and the measurements that are required for a claim to show."""

import dataclasses
import enum
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from sat_tf.reproduction.paper.record import Outcome

# Top-1 in percent, by row and seed.
Top1 = Mapping[str, Mapping[int, float]]


class ClaimVerdict(enum.Enum):
    """The verdict on a claim."""

    SHOWS = "shows"
    DOES_NOT_SHOW = "does not show"
    NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """An ordering of rows.

    The difference is the sum of top-1 over the rows `plus`, less that over the rows `minus`. A
    claim that something is better (`low` is 0 or more) shows if the mean over the seeds is in
    [`low`, `high`], and each seed is above 0. A claim that two are equal (`low` is negative) shows
    if each seed is in that range: the mean of contradicting seeds proves nothing.

    Attributes:
        text: the claim, as a sentence.
        source: its place in the paper; "" for a question of ours.
        printed: what the paper prints, in words.
        plus: names of rows.
        minus: names of rows, as many.
        low: the least difference, in points of top-1.
        high: the largest.
        checked: whether `sat-tf miniature` fails if it does not show: claims that always showed
            with a wide margin in this setting.
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
        """The required range of the difference, in short.

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
    """A claim with its measurement.

    Attributes:
        claim: see `Claim`.
        differences: in points of top-1, for the seeds that all its rows have.
        verdict: see `judge`.
    """

    claim: Claim
    differences: Mapping[int, float]
    verdict: ClaimVerdict

    @property
    def measured(self) -> str:
        """The mean, with standard deviation and number of seeds; "" if nothing was run.

        >>> claim = Claim(text="", source="", printed="", plus=("a",), minus=("b",))
        >>> Judged(claim, {0: 4.0, 1: 6.0}, ClaimVerdict.SHOWS).measured
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
    """Compares a claim with the measurement.

    Args:
        claim: see `Claim`.
        top1: see `by_row`.

    Returns:
        The verdict, over the seeds that have all the rows; NOT_RUN if there are none.
    """
    rows = [top1.get(row, {}) for row in (*claim.plus, *claim.minus)]
    seeds = sorted(set.intersection(*(set(row) for row in rows)))
    differences = {
        seed: sum(top1[row][seed] for row in claim.plus)
        - sum(top1[row][seed] for row in claim.minus)
        for seed in seeds
    }
    if not differences:
        return Judged(claim, {}, ClaimVerdict.NOT_RUN)
    shows = _shows(claim, list(differences.values()))
    return Judged(claim, differences, ClaimVerdict.SHOWS if shows else ClaimVerdict.DOES_NOT_SHOW)


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


_FLOAT = "glyphs/float"
_GAP = "glyphs_gap_head"
_MAX = "glyphs_through_max"

# One point is two standard errors on 8000 held-out images, and seeds differ by as much again: two
# points count as better, or as worse, where the paper gives no number.
_POINTS = 2.0


@dataclasses.dataclass(frozen=True)
class Chapter:
    """Claims that belong together.

    Attributes:
        title: in plain text.
        about: a sentence or two on them.
        claims: in order.
        of_paper: whether they are the paper's, in the main setting.
    """

    title: str
    about: str
    claims: tuple[Claim, ...]
    of_paper: bool = False


def _of(bits: int, method: str) -> str:
    return f"glyphs/{bits}bits/{method}"


CHAPTERS = (
    Chapter(
        "Rule I: weights that are clamped, and rescaled",
        "Float models; no number is rounded.",
        (
            Claim(
                text="Clamping the weights impairs training",
                source="Figure 2b",
                printed="as much as 1 point, MobileNet-V2",
                plus=(f"{_FLOAT}/vanilla",),
                minus=(f"{_FLOAT}/clamp",),
                low=_POINTS,
            ),
            Claim(
                text="Rescaling the clamped weights recovers it",
                source="Figure 2b",
                printed="learning curves only",
                plus=(f"{_FLOAT}/clamp_constant",),
                minus=(f"{_FLOAT}/clamp",),
                low=_POINTS,
                checked=True,
            ),
            Claim(
                text="The rescaled model is about as good as the ordinary one",
                source="Figure 2b, Table 1",
                printed="−0.3 (71.8 against 72.1), MobileNet-V2",
                plus=(f"{_FLOAT}/clamp_constant",),
                minus=(f"{_FLOAT}/vanilla",),
                low=-_POINTS,
                high=_POINTS,
            ),
            Claim(
                text="Rescaling by the standard deviation does about as well as the constant",
                source="Figure S4",
                printed="learning curves only",
                plus=(f"{_FLOAT}/clamp_stddev",),
                minus=(f"{_FLOAT}/clamp_constant",),
                low=-_POINTS,
                high=_POINTS,
            ),
        ),
        of_paper=True,
    ),
    Chapter(
        "4 bits: the ablation",
        "Each method is trained from its own float model. The paper's values are those of "
        "MobileNet-V1, Table 4; where it prints less than a point, only the sign is checked.",
        (
            Claim(
                text="SAT alone helps",
                source="Table 4",
                printed="+0.6 (70.9 against 70.3)",
                plus=(_of(4, "pact_sat"),),
                minus=(_of(4, "pact"),),
            ),
            Claim(
                text="The calibrated gradient alone helps",
                source="Table 4",
                printed="+0.1 (70.4 against 70.3)",
                plus=(_of(4, "pact_cg"),),
                minus=(_of(4, "pact"),),
            ),
            Claim(
                text="The calibrated gradient helps on top of SAT",
                source="Table 4, Figure 3",
                printed="+0.4 (71.3 against 70.9)",
                plus=(_of(4, "pact_sat_cg"),),
                minus=(_of(4, "pact_sat"),),
            ),
            Claim(
                text="Both together help",
                source="Table 4",
                printed="+1.0 (71.3 against 70.3)",
                plus=(_of(4, "pact_sat_cg"),),
                minus=(_of(4, "pact"),),
            ),
            Claim(
                text="SAT matters more than the calibrated gradient",
                source="Table 4",
                printed="+0.5 (70.9 against 70.4)",
                plus=(_of(4, "pact_sat"),),
                minus=(_of(4, "pact_cg"),),
            ),
            Claim(
                text="The model at 4 bits is at least as good as its float model",
                source="Tables 1 and 3",
                printed="+1.0 (76.9 against 75.9) PreResNet-50; −0.7 (71.1 against 71.8) "
                "MobileNet-V2",
                plus=(_of(4, "pact_sat_cg"),),
                minus=(f"{_FLOAT}/clamp_constant",),
            ),
        ),
        of_paper=True,
    ),
    Chapter(
        "2 bits: the calibrated gradient",
        "The paper prints no accuracy of MobileNets with 2-bit activations, only the learning "
        "curves of Figure 3.",
        (
            Claim(
                text="Both together help",
                source="Figure 3, Table 4",
                printed="no number at 2 bits",
                plus=(_of(2, "pact_sat_cg"),),
                minus=(_of(2, "pact"),),
                low=8.0,
                checked=True,
            ),
            Claim(
                text="The calibrated gradient helps without SAT",
                source="Figure 3",
                printed="learning curves only",
                plus=(_of(2, "pact_cg"),),
                minus=(_of(2, "pact"),),
                low=3.0,
                checked=True,
            ),
            Claim(
                text="The calibrated gradient helps with SAT",
                source="Figure 3",
                printed="learning curves only",
                plus=(_of(2, "pact_sat_cg"),),
                minus=(_of(2, "pact_sat"),),
                low=3.0,
                checked=True,
            ),
            Claim(
                text="SAT alone helps",
                source="Table 4",
                printed="no number at 2 bits",
                plus=(_of(2, "pact_sat"),),
                minus=(_of(2, "pact"),),
                low=_POINTS,
            ),
            Claim(
                text="The calibrated gradient gains more at 2 bits than at 4",
                source="Figure 3",
                printed="learning curves only",
                plus=(_of(2, "pact_sat_cg"), _of(4, "pact_sat")),
                minus=(_of(2, "pact_sat"), _of(4, "pact_sat_cg")),
                low=_POINTS,
            ),
        ),
        of_paper=True,
    ),
    Chapter(
        "How much of SAT is the float model it starts from",
        "A question of ours: the paper starts each method from its own float model, so SAT there "
        "means a better start and a better training after it.",
        tuple(
            claim
            for bits in (4, 2)
            for claim in (
                Claim(
                    text=f"{bits} bits: PACT gains by the start of SAT alone",
                    source="",
                    printed="",
                    plus=(f"glyphs_common_start/{bits}bits/pact_from_sat",),
                    minus=(_of(bits, "pact"),),
                    low=_POINTS,
                ),
                Claim(
                    text=f"{bits} bits: SAT helps from its own float model, PACT having the same",
                    source="",
                    printed="",
                    plus=(_of(bits, "pact_sat"),),
                    minus=(f"glyphs_common_start/{bits}bits/pact_from_sat",),
                    low=_POINTS,
                ),
                Claim(
                    text=f"{bits} bits: SAT helps from the clamped float model, as PACT has it",
                    source="",
                    printed="",
                    plus=(f"glyphs_common_start/{bits}bits/sat_from_clamp",),
                    minus=(_of(bits, "pact"),),
                    low=_POINTS,
                ),
            )
        ),
    ),
    Chapter(
        "Other grids, and integers from end to end",
        "With SAT and the calibrated gradient; DoReFa's grid is the paper's. “Modified” is what "
        "the authors' released code rounds weights to by default.",
        (
            *(
                Claim(
                    text=f"{bits} bits: the {grid} grid costs nothing",
                    source="released code" if grid == "modified" else "",
                    printed="",
                    plus=(f"glyphs_grids/{bits}bits/{grid}",),
                    minus=(_of(bits, "pact_sat_cg"),),
                    low=-_POINTS,
                )
                for bits in (4, 2)
                for grid in ("rounded", "narrow", "modified")
            ),
            *(
                Claim(
                    text=f"{bits} bits: 8-bit residual sums cost nothing",
                    source="",
                    printed="",
                    plus=(f"glyphs_streams/{bits}bits/pact_sat_cg",),
                    minus=(_of(bits, "pact_sat_cg"),),
                    low=-_POINTS,
                )
                for bits in (4, 2)
            ),
        ),
    ),
    Chapter(
        "Where it does not hold: other settings of the same task",
        "Counter-examples. With gradients through the maximum of the weights, as in the authors' "
        "code, a clamped model trains well even in so short a time, and better than a rescaled "
        "one; κ₀ after training, further below, does not explain it.",
        (
            Claim(
                text="Rescaling recovers training: gradients through the maximum",
                source="Figure 2b",
                printed="learning curves only",
                plus=(f"{_MAX}/float/clamp_constant",),
                minus=(f"{_MAX}/float/clamp",),
                low=_POINTS,
            ),
            Claim(
                text="SAT alone helps at 4 bits: gradients through the maximum",
                source="Table 4",
                printed="+0.6 (70.9 against 70.3)",
                plus=(f"{_MAX}/4bits/pact_sat",),
                minus=(f"{_MAX}/4bits/pact",),
            ),
            Claim(
                text="Rescaling recovers training: the other head",
                source="Figure 2b",
                printed="learning curves only",
                plus=(f"{_GAP}/float/clamp_constant",),
                minus=(f"{_GAP}/float/clamp",),
                low=_POINTS,
            ),
            Claim(
                text="The rescaled model is about as good as the ordinary one: the other head",
                source="Figure 2b, Table 1",
                printed="−0.3 (71.8 against 72.1), MobileNet-V2",
                plus=(f"{_GAP}/float/clamp_constant",),
                minus=(f"{_GAP}/float/vanilla",),
                low=-_POINTS,
                high=_POINTS,
            ),
            Claim(
                text="Rescaling recovers training: the other head, gradients through the maximum",
                source="Figure 2b",
                printed="learning curves only",
                plus=(f"{_GAP}/float_through_max/clamp_constant",),
                minus=(f"{_GAP}/float_through_max/clamp",),
                low=_POINTS,
            ),
            *(
                Claim(
                    text=f"SAT alone helps at {bits} bits: the other head, gradients through the "
                    "maximum",
                    source="Table 4",
                    printed="+0.6 (70.9 against 70.3)" if bits == 4 else "no number at 2 bits",
                    plus=(f"{_GAP}/{bits}bits_through_max/pact_sat",),
                    minus=(f"{_GAP}/{bits}bits_through_max/pact",),
                )
                for bits in (4, 2)
            ),
        ),
    ),
)

CLAIMS = tuple(claim for chapter in CHAPTERS for claim in chapter.claims)
