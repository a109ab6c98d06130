"""Which rows of configs/paper the miniature runs, in the groups in which its page shows them."""

import dataclasses
from collections.abc import Sequence

from sat_tf.paper.run import Job, plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that are looked at together.

    Attributes:
        title: in plain text.
        about: a sentence on what is compared.
        rows: names of rows.
        every_seed: whether the long run repeats them with every seed.
    """

    title: str
    about: str
    rows: tuple[str, ...]
    every_seed: bool = False


_METHODS = ("pact", "pact_cg", "pact_sat", "pact_sat_cg")

GROUPS = (
    Group(
        title="Float models",
        about="Nothing is rounded: what clamping does to training, and rescaling after it.",
        rows=(
            "glyphs/float/vanilla",
            "glyphs/float/clamp",
            "glyphs/float/clamp_constant",
            "glyphs/float/clamp_stddev",
        ),
        every_seed=True,
    ),
    Group(
        title="4 bits",
        about="Weights and activations at 4 bits, each method from the float model of its own.",
        rows=tuple(f"glyphs/4bits/{method}" for method in _METHODS),
        every_seed=True,
    ),
    Group(
        title="2 bits",
        about="The same at 2 bits.",
        rows=tuple(f"glyphs/2bits/{method}" for method in _METHODS),
        every_seed=True,
    ),
    Group(
        title="The start exchanged",
        about="PACT from the float model of SAT, and SAT from the clamped one.",
        rows=(
            "glyphs_common_start/4bits/pact_from_sat",
            "glyphs_common_start/4bits/sat_from_clamp",
            "glyphs_common_start/2bits/pact_from_sat",
            "glyphs_common_start/2bits/sat_from_clamp",
        ),
        every_seed=True,
    ),
    Group(
        title="Other grids and 8-bit streams",
        about="PACT+SAT+CG with other grids of the weights, and with 8-bit residual sums.",
        rows=(
            *(
                f"glyphs_grids/{bits}bits/{grid}"
                for bits in (4, 2)
                for grid in ("rounded", "narrow", "modified")
            ),
            "glyphs_streams/4bits/pact_sat_cg",
            "glyphs_streams/2bits/pact_sat_cg",
        ),
    ),
    Group(
        title="The other head, a third of the learning rate",
        about="The head of MobileNet-V2 itself, which averages right in front of the classifier.",
        rows=(
            "glyphs_gap_head/float/vanilla",
            "glyphs_gap_head/float/clamp",
            "glyphs_gap_head/float/clamp_constant",
            "glyphs_gap_head/float_through_max/clamp",
            "glyphs_gap_head/float_through_max/clamp_constant",
            "glyphs_gap_head/4bits_through_max/pact",
            "glyphs_gap_head/4bits_through_max/pact_sat",
            "glyphs_gap_head/2bits_through_max/pact",
            "glyphs_gap_head/2bits_through_max/pact_sat",
        ),
    ),
    Group(
        title="Gradients through the maximum of the weights",
        about="The setting of the first groups, with the gradients of the authors' code.",
        rows=(
            "glyphs_through_max/float/clamp",
            "glyphs_through_max/float/clamp_constant",
            "glyphs_through_max/4bits/pact",
            "glyphs_through_max/4bits/pact_sat",
        ),
    ),
)

# The rows of the short run: enough for every claim that is checked.
SHORT = (
    "glyphs/float/clamp",
    "glyphs/float/clamp_constant",
    *(f"glyphs/2bits/{method}" for method in _METHODS),
)

SHORT_SEEDS = (0,)
FULL_SEEDS = (0, 1, 2)


def jobs(*, full: bool, seeds: Sequence[int] = (), changes: Sequence[str] = ()) -> list[Job]:
    """What there is to run, the rows that need every seed first.

    Args:
        full: all groups, or the short run.
        seeds: by default those of the run; rows that are run once have the first.
        changes: "key=value" with a dotted key, for all rows alike.

    Raises:
        RunError: the changes do not fit; lists every problem.
    """
    seeds = tuple(seeds) or (FULL_SEEDS if full else SHORT_SEEDS)
    if not full:
        return plan(SHORT, changes=changes, seeds=seeds)
    often = [row for group in GROUPS if group.every_seed for row in group.rows]
    once = [row for group in GROUPS if not group.every_seed for row in group.rows]
    return [
        *plan(often, changes=changes, seeds=seeds),
        *plan(once, changes=changes, seeds=seeds[:1]),
    ]
