"""Red, amber and green: one table of conditions on the numbers of a certificate.

`TOPICS` is the table; the guide to verification shows it, and so does the page of a certificate.
The sentences are in `sentences.jinja`: pages, terminals, notebooks and reports have no others.
"""

import functools
import pathlib
import re
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jinja2

from sat_tf.exact.certificate import record
from sat_tf.exact.certificate.output_comparison import FEWEST_VALUES, MOST_ERROR, OutputCount
from sat_tf.exact.certificate.record import FEW_CODES, FEW_POINTS, FEWEST_IMAGES, CertificateRecord
from sat_tf.exact.certificate.runtimes import PortabilityClaim, are_portable, runtime_title
from sat_tf.exact.targets.processors import saved_processor
from sat_tf.messages.tables import Column, Marked, Table, points

# The kinds of `Marked` that rules give, from the least severe on.
_KINDS = NONE, PLAIN, GREEN, AMBER, RED = "", "plain", "good", "watch", "bad"
COLOURS = {RED: "red", AMBER: "amber", GREEN: "green"}
_POINT, _POINTS, _SATURATED, _UNEXPLAINED = (
    f"{100 * share:g}"
    for share in (record.ONE_POINT, FEW_POINTS, record.MOST_SATURATED, record.MOST_UNEXPLAINED)
)
VALUE_RULE = (
    f"Values are off by a channel that differs by more than {MOST_ERROR:g} of its standard "
    f"deviations (root mean square), or of which fewer than {FEWEST_VALUES} different values are "
    f"left of {2 * FEWEST_VALUES} or more. An output holds classes where a softmax, a sigmoid, "
    "labels or the float model's loss say so, else values."
)
# The models that are compared, by their names in a certificate.
MODEL_TITLES = {
    "quantized": "Keras",
    "simulation": "simulation",
    "tflite": "LiteRT",
    "float": "float model",
}
NOT_SAID = (
    "Nothing is said of GPU delegates, NNAPI and the delegates of vendors' neural processors, "
    "which have rules of their own."
)


@functools.cache
def _sentences() -> Any:
    source = pathlib.Path(__file__).with_name("sentences.jinja").read_text("utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # for plain text
    environment.filters |= {"form": format, "points": points, "runtime_title": runtime_title}
    environment.globals |= {"fewest_images": FEWEST_IMAGES, "model_titles": MODEL_TITLES}
    return environment.from_string(re.sub(r"\s*\n\s*", " ", source)).module


def sentence(name: str, *numbers: Any) -> str:
    """Returns a sentence of `sentences.jinja` on some numbers, in plain text.

    >>> sentence("counted", 3, 4000)
    '3 of 4,000'
    """
    return str(getattr(_sentences(), name)(*numbers))


def severest(headlines: Iterable[Marked]) -> Marked | None:
    """Returns the first of the headlines with the worst kind; None without any."""
    return max(headlines, key=lambda headline: _KINDS.index(headline.kind), default=None)


def kind_of_loss(lost: float, images: int = FEWEST_IMAGES) -> str:
    """Returns the kind of a `Marked` loss of accuracy, as a share of images, by `FLOAT`.

    >>> [kind_of_loss(lost) for lost in (-0.05, 0.01, 0.02, 0.3, float("nan"))]
    ['good', 'good', 'watch', 'bad', 'bad']
    """
    measured: Any = types.SimpleNamespace(lost=lambda _: lost, is_random=False)
    measured.has_few_answers = lambda _: images < FEWEST_IMAGES
    return next(rule.headline for rule in FLOAT.rules if rule.is_met(measured, None))


class Rule(NamedTuple):
    """A row of the table: a condition, and the colours that it gives, as kinds of `Marked`."""

    condition: str  # The condition in words.
    headline: str  # The colour of the headline; "" where the headline leaves it out.
    note: str  # The colour of the sentence; "" without a sentence.
    is_met: Callable[[CertificateRecord, Any], bool] = lambda certificate, item: True


class Topic(NamedTuple):
    """Items of a certificate, and the rules on them; the first rule that an item meets counts."""

    name: str  # The sentence's name; the headline's ends with "_headline".
    items: Callable[[CertificateRecord], Iterable[Any]]
    rules: Sequence[Rule]
    otherwise: str = NONE  # The kind of an item that meets no rule; "" for no sentence.

    def met(self, certificate: CertificateRecord) -> list[tuple[Any, Rule]]:
        """Returns each item, and the rule that it meets."""
        rules = [*self.rules, Rule("", NONE, self.otherwise)]
        return [
            (item, next(rule for rule in rules if rule.is_met(certificate, item)))
            for item in self.items(certificate)
        ]

    def notes(self, certificate: CertificateRecord) -> list[Marked]:
        """Returns the sentences, coloured."""
        met = self.met(certificate)
        notes = [Marked(sentence(self.name, certificate, i), r.note) for i, r in met if r.note]
        return [note for note in notes if note.words]

    def headline(self, certificate: CertificateRecord) -> Marked | None:
        """Returns the headline on the worst item; None where the headline leaves it out."""

        def severity(pair: tuple[Any, Rule]) -> tuple[int, int]:
            return _KINDS.index(pair[1].headline), _KINDS.index(pair[1].note)

        item, rule = max(self.met(certificate), key=severity, default=(None, Rule("", NONE, NONE)))
        if not rule.headline:
            return None
        return Marked(sentence(f"{self.name}_headline", certificate, item), rule.headline)


CODES = Topic(
    "codes",
    lambda certificate: [certificate.xnnpack],
    [
        Rule(
            "LiteRT with XNNPACK computes another code than the simulation",
            *(RED, NONE),
            lambda certificate, runtime: bool(runtime.codes_differing),
        ),
        Rule("no code differs, and no other line colours the headline", GREEN, NONE),
    ],
)
STATES = Topic(
    "states",
    lambda certificate: filter(None, [certificate.sequence]),
    [
        Rule(
            "LiteRT with XNNPACK, run frame by frame with its states fed back, gives another code "
            "than the simulation, or than the file of whole windows",
            *(RED, RED),
            lambda certificate, run: bool(run.codes_differing),
        ),
        Rule("no code of the sequence differs", NONE, GREEN),
    ],
)
IMAGES = Topic(
    "images",
    lambda certificate: [certificate.num_images],
    [
        Rule(
            f"answers are compared with another model's on fewer than {FEWEST_IMAGES} images, and "
            "are within the limits below",
            *(AMBER, NONE),
            lambda certificate, _: certificate.has_few_images and not certificate.output_mismatches,
        )
    ],
)
ANSWERS = Topic(
    "answers",
    lambda certificate: certificate.output_mismatches,
    [
        Rule(
            f"answers differ from the quantized Keras model's: more than {_POINTS} % of at least "
            f"{FEWEST_IMAGES} images, pixels, rows or boxes, and more than {record.FEW_PLACES} of "
            "them, have another class; or values are off; of sigmoids, both",
            *(RED, RED),
            lambda certificate, count: not certificate.is_random,
        ),
        Rule("they do on random images", AMBER, AMBER),
    ],
)
TIES = Topic(
    "ties",
    lambda certificate: [
        count for count in certificate.outputs_beside_keras if count.ties and not count.is_values
    ],
    [
        Rule(
            f"more than {_POINT} % of images have several largest values in the file, one in Keras",
            *(NONE, AMBER),
            lambda certificate, count: count.ties > record.ONE_POINT * count.places,
        )
    ],
    otherwise=PLAIN,
)
SATURATION = Topic(
    "saturation",
    lambda certificate: certificate.most_saturated,
    [
        Rule(
            f"more than {_SATURATED} % of the values of a tensor of Keras, and more than "
            f"{FEW_CODES}, are beyond the range that was observed, and codes of it differ",
            *(AMBER, AMBER),
            lambda certificate, tensor: certificate.saturates,
        )
    ],
    otherwise=PLAIN,
)
CODES_OF_KERAS = Topic(
    "codes_of_keras",
    lambda certificate: certificate.first_by_itself,
    [
        Rule(
            f"more than {_UNEXPLAINED} % of the codes of Keras differ, not because the file alone "
            "has rounded biases, and the next line names no tensor",
            *(NONE, AMBER),
            lambda certificate, tensor: not certificate.has_rounded_biases,
        )
    ],
    otherwise=PLAIN,
)
UNEXPLAINED = Topic(
    "unexplained",
    lambda certificate: filter(None, [certificate.unexplained]),
    [
        Rule(
            f"{_UNEXPLAINED} % more codes of a tensor, and more than {FEW_CODES}, differ by "
            "themselves than rounding of biases explains",
            *(NONE, AMBER),
        )
    ],
)


def _lost(limit: float, *, by_few: bool) -> Callable[[CertificateRecord, OutputCount], bool]:
    """Returns the condition that more than a share is lost of the float model; below 0, gained."""

    def is_met(certificate: CertificateRecord, count: OutputCount) -> bool:
        lost = certificate.lost(count)
        is_more = lost < limit if limit < 0 else not lost <= limit
        return is_more and (by_few or not certificate.has_few_answers(count))

    return is_met


_MUCH = _lost(FEW_POINTS, by_few=False)
_OF_FEW = f"the same, of fewer than {FEWEST_IMAGES} images, pixels, rows or boxes"
FLOAT = Topic(
    "float",
    lambda certificate: certificate.float_outputs,
    [
        Rule(
            f"more than {_POINTS} points are lost of the float model: of accuracy; without labels, "
            "of images, pixels, rows or boxes with its class; or values are off; of sigmoids "
            "without labels, both",
            *(RED, RED),
            lambda certificate, count: _MUCH(certificate, count) and not certificate.is_random,
        ),
        Rule("the same, on random images", AMBER, RED, _MUCH),
        Rule(_OF_FEW, AMBER, AMBER, _lost(FEW_POINTS, by_few=True)),
        Rule(
            f"accuracy is more than {_POINTS} points above the float model's",
            *(GREEN, RED),
            _lost(-FEW_POINTS, by_few=False),
        ),
        Rule(_OF_FEW, GREEN, AMBER, _lost(-FEW_POINTS, by_few=True)),
        Rule(
            f"more than {_POINT} point is lost of the float model",
            *(AMBER, AMBER),
            _lost(record.ONE_POINT, by_few=True),
        ),
        Rule("no more is lost of it", GREEN, GREEN),
    ],
)
INPUT_RANGES = Topic(
    "input_range",
    lambda certificate: certificate.input_ranges,
    [
        Rule(
            "the range of an input is certainly not the one that the float model was trained with",
            *(RED, RED),
            lambda certificate, checked: bool(checked.problem),
        ),
        Rule(
            "nothing could check the range of an input",
            *(AMBER, AMBER),
            lambda certificate, checked: not checked.checked_by,
        ),
    ],
    otherwise=PLAIN,
)
REFUSED = Topic("refused", lambda certificate: certificate.refused, [], otherwise=PLAIN)
PORTABILITY = Topic(
    "portability",
    lambda certificate: [certificate.portability],
    [
        Rule(
            "codes are not known to be the same on all processors",
            *(AMBER, AMBER),
            lambda certificate, claims: not certificate.is_portable and bool(certificate.machine),
        ),
        Rule(
            "the same, where it is not known on which machine the file ran",
            *(NONE, AMBER),
            lambda certificate, claims: not certificate.is_portable,
        ),
        Rule("codes are the same on all processors", NONE, GREEN),
    ],
)
MACHINE = Topic(
    "measured", lambda certificate: filter(None, [certificate.machine]), [], otherwise=PLAIN
)
NPU = Topic(
    "npu",
    lambda certificate: [saved_processor(certificate.target)],
    [
        Rule(
            "the file is for an NPU, which was not here",
            *(NONE, AMBER),
            lambda certificate, processor: processor.native,
        )
    ],
)


def _left_to_the_cpu(certificate: CertificateRecord) -> Iterable[str]:
    """Yields how many operators each target leaves to the CPU, and a line for each operator."""
    for target, lines in certificate.cpu_fallback.items():
        if lines:
            yield saved_processor(target).shortfall(len(lines), sum(certificate.operators.values()))
            yield from lines


CPU_FALLBACK = Topic(
    "cpu_fallback", _left_to_the_cpu, [Rule("a target leaves operators to the CPU", NONE, AMBER)]
)
WARNINGS = Topic(
    "warning", lambda certificate: certificate.warnings, [Rule("there is a note", NONE, AMBER)]
)
# The page colours the counts in its table of runtimes by this rule, and XNNPACK's by `CODES`.
RUNTIMES = Rule(
    "another runtime than XNNPACK computes other codes than the simulation, or one other codes "
    "than its own rules, in the table of runtimes",
    *(NONE, AMBER),
)

BESIDE_KERAS = (ANSWERS, TIES, SATURATION, CODES_OF_KERAS, UNEXPLAINED)
_ON_RUNTIMES = (INPUT_RANGES, REFUSED, PORTABILITY, MACHINE, NPU, CPU_FALLBACK, WARNINGS)
# All topics, in the order of their sentences.
TOPICS = (CODES, STATES, IMAGES, *BESIDE_KERAS, FLOAT, *_ON_RUNTIMES)
# The topics of the headline on codes, in its order.
_IN_HEADLINE = (CODES, STATES, PORTABILITY, ANSWERS, SATURATION, IMAGES, INPUT_RANGES)


def notes_on(certificate: CertificateRecord, topics: Iterable[Topic] = TOPICS) -> list[Marked]:
    """Returns the sentences on topics, in the order in which they are shown."""
    return [note for topic in topics for note in topic.notes(certificate)]


def codes_headline(certificate: CertificateRecord) -> Marked:
    """Returns the headline on codes: how many differ, and what keeps it from being green."""
    headlines = filter(None, [topic.headline(certificate) for topic in _IN_HEADLINE])
    words, kinds = zip(*headlines, strict=True)
    return Marked("".join(words), max(kinds, key=_KINDS.index))


def verdict(certificate: CertificateRecord) -> Marked:
    """Returns the loss against the float model, where it is more than a point, and the codes."""
    lost, codes = FLOAT.headline(certificate), codes_headline(certificate)
    if lost is None or lost.kind == GREEN:
        return codes
    return Marked(f"{lost.words}; {codes.words}", max(lost.kind, codes.kind, key=_KINDS.index))


def float_values(certificate: CertificateRecord) -> str:
    """Returns the sentence on float values other than the outputs; empty without any."""
    has_some = len(certificate.float_operators) > 1
    return sentence("float_values", certificate) if has_some else ""


def few_images(certificate: CertificateRecord) -> str:
    """Returns the sentence on too few images to judge answers; empty where there are enough."""
    is_few = certificate.has_few_images
    return sentence("few_images", certificate.num_images) if is_few else ""


def portability_in_words(claims: list[PortabilityClaim]) -> Marked:
    """Returns the sentence on the processors that compute the same codes of a file."""
    *_, differs, same = PORTABILITY.rules
    colour = (same if are_portable(claims) else differs).note
    return Marked(sentence("portability", None, claims), colour)


def rule_table() -> Table[Rule]:
    """Returns the conditions that give a colour, as the guide and pages show them."""

    def colour(rule_colour: str) -> Marked:
        return Marked(COLOURS.get(rule_colour, "–"), rule_colour)

    columns: list[Column[Rule]] = [
        Column("where", lambda rule: rule.condition),
        Column("the headline is", lambda rule: colour(rule.headline)),
        Column("its sentence is", lambda rule: colour(rule.note)),
    ]
    rules = [*(rule for topic in TOPICS for rule in topic.rules), RUNTIMES]
    coloured = [rule for rule in rules if {rule.headline, rule.note} & COLOURS.keys()]
    return Table(columns=columns, rows=coloured)
