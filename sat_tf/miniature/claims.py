"""The claims: those of the paper, and the questions that they leave, in the order of the page."""

import dataclasses

from sat_tf.miniature.claim import Claim

_FLOAT = "glyphs/float"
_GAP = "glyphs_gap_head"
_MAX = "glyphs_through_max"

# A difference of one point is two standard errors of 8000 held-out images, and seeds differ by as
# much again: two points are what counts as better, or as worse, where the paper gives no number.
_POINTS = 2.0


@dataclasses.dataclass(frozen=True)
class Chapter:
    """Claims that belong together.

    Attributes:
        title: in plain text.
        about: a sentence or two on them.
        claims: in order.
        of_paper: whether they are the paper's, in the setting that was chosen.
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
        "Each method is trained on from the float model of its own. The paper's figures are those "
        "of MobileNet-V1, Table 4; where it prints less than a point, the sign is what is asked.",
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
        "A question of ours: the paper starts each method from its own float model, so what is "
        "called SAT there is a better start and a better training after it.",
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
        "code, a clamped model trains well by itself in so short a time, and better than one that "
        "is rescaled; κ₀ after training, further below, does not explain it.",
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
