"""The rows of configs/paper that the miniature runs, in the groups of its page."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence

from sat_tf.reproduction.paper.run import Job, plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that are compared with each other.

    Attributes:
        title: in plain text.
        about: a sentence on what is compared.
        rows: names of rows, with their labels.
        every_seed: whether the long run repeats them with every seed.
    """

    title: str
    about: str
    rows: Mapping[str, str]
    every_seed: bool = False


_METHODS = {
    "pact": "PACT",
    "pact_cg": "PACT+CG",
    "pact_sat": "PACT+SAT",
    "pact_sat_cg": "PACT+SAT+CG",
}


def _ablation(bits: int) -> dict[str, str]:
    return {f"glyphs/{bits}bits/{method}": label for method, label in _METHODS.items()}


def _starts(bits: int) -> dict[str, str]:
    exchanged = f"glyphs_common_start/{bits}bits"
    return {
        f"glyphs/{bits}bits/pact": f"{bits} bits: PACT from clamp",
        f"{exchanged}/sat_from_clamp": f"{bits} bits: SAT from clamp",
        f"{exchanged}/pact_from_sat": f"{bits} bits: PACT from SAT",
        f"glyphs/{bits}bits/pact_sat": f"{bits} bits: SAT from SAT",
    }


def _grids(bits: int) -> dict[str, str]:
    return {
        f"glyphs/{bits}bits/pact_sat_cg": f"{bits} bits: DoReFa (paper)",
        **{
            f"glyphs_grids/{bits}bits/{grid}": f"{bits} bits: {grid}"
            for grid in ("rounded", "narrow", "modified")
        },
        f"glyphs_streams/{bits}bits/pact_sat_cg": f"{bits} bits: 8-bit streams",
    }


GROUPS = (
    Group(
        title="Float models",
        about="Nothing is rounded: the effect of clamping on training, and of rescaling after it.",
        rows={
            "glyphs/float/vanilla": "vanilla",
            "glyphs/float/clamp": "clamp",
            "glyphs/float/clamp_constant": "clamp + constant (SAT)",
            "glyphs/float/clamp_stddev": "clamp + stddev",
        },
        every_seed=True,
    ),
    Group(
        title="4 bits",
        about="Weights and activations at 4 bits, each method from its own float model.",
        rows=_ablation(4),
        every_seed=True,
    ),
    Group(
        title="2 bits",
        about="The same at 2 bits.",
        rows=_ablation(2),
        every_seed=True,
    ),
    Group(
        title="The start exchanged",
        about="PACT and PACT+SAT, both from the clamped float model and from that of SAT.",
        rows={**_starts(4), **_starts(2)},
        every_seed=True,
    ),
    Group(
        title="Grids of the weights, and 8-bit streams",
        about="PACT+SAT+CG with other grids, and on DoReFa's with 8-bit residual sums.",
        rows={**_grids(4), **_grids(2)},
    ),
    Group(
        title="The other head, a third of the learning rate",
        about="The head of MobileNet-V2 itself, which averages in front of the classifier; without "
        "and with gradients through the maximum of the weights (max).",
        rows={
            "glyphs_gap_head/float/vanilla": "vanilla",
            "glyphs_gap_head/float/clamp": "clamp",
            "glyphs_gap_head/float/clamp_constant": "clamp + constant",
            "glyphs_gap_head/float_through_max/clamp": "clamp, max",
            "glyphs_gap_head/float_through_max/clamp_constant": "clamp + constant, max",
            "glyphs_gap_head/4bits_through_max/pact": "4 bits: PACT, max",
            "glyphs_gap_head/4bits_through_max/pact_sat": "4 bits: PACT+SAT, max",
            "glyphs_gap_head/2bits_through_max/pact": "2 bits: PACT, max",
            "glyphs_gap_head/2bits_through_max/pact_sat": "2 bits: PACT+SAT, max",
        },
    ),
    Group(
        title="Gradients through the maximum of the weights",
        about="The setting of the first groups, with the gradients of the authors' code.",
        rows={
            "glyphs_through_max/float/clamp": "clamp",
            "glyphs_through_max/float/clamp_constant": "clamp + constant (SAT)",
            "glyphs_through_max/4bits/pact": "4 bits: PACT",
            "glyphs_through_max/4bits/pact_sat": "4 bits: PACT+SAT",
        },
    ),
)

# The rows of the short run: enough for every claim that is checked.
SHORT = (
    "glyphs/float/clamp",
    "glyphs/float/clamp_constant",
    *_ablation(2),
)

SHORT_SEEDS = (0,)
FULL_SEEDS = (0, 1, 2)


@contextlib.contextmanager
def grids_as_they_are() -> Iterator[None]:
    """Suppresses warnings of grids that train badly: they are rows for that reason."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="weight_grid=")
        yield


@grids_as_they_are()
def jobs(*, full: bool, seeds: Sequence[int] = (), changes: Sequence[str] = ()) -> list[Job]:
    """The jobs to run, rows with every seed first.

    Args:
        full: all groups, or the short run.
        seeds: by default those of the run; rows that are run once have the first.
        changes: "key=value" with a dotted key, for all rows.

    Raises:
        RunError: the changes do not fit; lists every problem.
    """
    seeds = tuple(seeds) or (FULL_SEEDS if full else SHORT_SEEDS)
    if not full:
        return plan(SHORT, changes=changes, seeds=seeds)
    often, once = (
        {row for group in GROUPS if group.every_seed == kind for row in group.rows}
        for kind in (True, False)
    )
    ordered = list(dict.fromkeys(row for group in GROUPS for row in group.rows))
    return [
        *plan([row for row in ordered if row in often], changes=changes, seeds=seeds),
        *plan([row for row in ordered if row in once - often], changes=changes, seeds=seeds[:1]),
    ]
