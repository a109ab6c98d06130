"""The answers of a float model and of its file as HTML: a section of a page."""

from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from sat_tf.analysis.answers.answers import (
    Answers,
    Bins,
    ClassAccuracy,
    Confusion,
    agreement,
    binned,
    class_accuracies,
    example_groups,
    most_changed,
    most_confused,
)
from sat_tf.presentation.charts import heat_map, scrolled
from sat_tf.presentation.page import render
from sat_tf.presentation.tables import Cell, Column, Marked, Table, digits, percent, points

_MOST_ROWS = 50
_MOST_LISTED = 10
_GROUPS = {
    "float_only": "Right in the float model, wrong in the file",
    "file_only": "Wrong in the float model, right in the file",
    "both_wrong": "Wrong in both",
    "both_right": "Right in both",
}
_count, _share = digits(","), percent(1)


def answers_section(answers: Answers) -> Markup:
    """Confusion matrices, most confused pairs, classes that changed, and examples.

    A page around it includes the styles of "presentation/charts.css", "presentation/curves.css" and
    "analysis/answers/answers.css".
    """
    all_three = (answers.labels, answers.float_answers, answers.file_answers)
    accuracies = class_accuracies(*all_three)
    changed = most_changed(accuracies, most=_MOST_LISTED)
    pairs = most_confused(*all_three, most=_MOST_LISTED)
    return render(
        "analysis/answers/answers.html",
        counts=agreement(*all_three),
        num_images=len(answers.labels),
        matrices=[
            _matrix(answers, "TFLite file", answers.file_answers),
            _matrix(answers, "Float model", answers.float_answers),
        ],
        bin_size=len(_bins(answers, answers.file_answers).classes(0)),
        num_classes=answers.num_classes,
        pairs=_pairs(answers, pairs).to_html("Most confused classes") if pairs else "",
        num_measured=len(accuracies),
        num_changed=sum(found.float_right != found.file_right for found in accuracies),
        changed=_changed(answers, changed).to_html("Accuracy by class") if changed else "",
        examples=_examples(answers),
    )


def _bins(answers: Answers, given: np.ndarray) -> Bins:
    return binned(answers.labels, given, answers.num_classes, most=_MOST_ROWS)


def _matrix(answers: Answers, title: str, given: np.ndarray) -> Markup:
    bins = _bins(answers, given)
    rows = [bins.classes(row) for row in range(len(bins.starts))]
    # A row of several classes has their numbers, for want of room.
    names = [answers.name(row[0]) if len(row) == 1 else f"{row[0]}–{row[-1]}" for row in rows]
    images = bins.counts.sum(axis=1)

    def tip(row: int, column: int) -> str:
        count, of = int(bins.counts[row, column]), int(images[row])
        return f"{names[row]} taken for {names[column]}: {count} of {of}"

    right = int(np.count_nonzero(answers.labels == given))
    drawn = heat_map(
        bins.counts,
        names,
        title=f"Confusion matrix: {title}",
        summary=f"{right} of {len(given)} images are classified right.",
        tip_of=tip,
    )
    return Markup("<figure><figcaption>{}</figcaption>{}</figure>").format(
        title, scrolled(drawn, title)
    )


def _pairs(answers: Answers, pairs: list[Confusion]) -> Table[Confusion]:
    columns: list[Column[Confusion]] = [
        Column("class", lambda pair: Marked(answers.name(pair.label), "name")),
        Column("taken for", lambda pair: answers.name(pair.answer)),
        Column("by the file", lambda pair: pair.by_file, _count, number=True),
        Column("by the float model", lambda pair: pair.by_float_model, _count, number=True),
        Column("images of the class", lambda pair: pair.images, _count, number=True),
    ]
    return Table(columns=columns, rows=pairs)


def _changed(answers: Answers, changed: list[ClassAccuracy]) -> Table[ClassAccuracy]:
    def gained(found: ClassAccuracy) -> Cell:
        return Marked(points(found.gained, 1), "good" if found.gained > 0 else "bad")

    columns: list[Column[ClassAccuracy]] = [
        Column("class", lambda found: Marked(answers.name(found.label), "name")),
        Column("images", lambda found: found.images, _count, number=True),
        Column("float model", lambda found: found.float_right / found.images, _share, number=True),
        Column("file", lambda found: found.file_right / found.images, _share, number=True),
        Column("points", gained, number=True),
    ]
    return Table(columns=columns, rows=changed)


class _Shown(NamedTuple):
    """An example on the page."""

    picture: str
    label: str
    float_model: Marked
    file: Marked


def _examples(answers: Answers) -> dict[str, list[_Shown]]:
    """The examples under the titles of their groups; groups without any are left out."""
    groups = example_groups(answers.labels, answers.float_answers, answers.file_answers)
    members = {name: set(indices.tolist()) for name, indices in groups.items()}
    shown = {
        title: [
            _shown(answers, example.image, example.picture)
            for example in answers.examples
            if example.image in members[name]
        ]
        for name, title in _GROUPS.items()
    }
    return {title: found for title, found in shown.items() if found}


def _shown(answers: Answers, image: int, picture: str) -> _Shown:
    label = int(answers.labels[image])

    def marked(given: int) -> Marked:
        return Marked(answers.name(given), "good" if given == label else "bad")

    return _Shown(
        f"data:image/jpeg;base64,{picture}",
        answers.name(label),
        marked(int(answers.float_answers[image])),
        marked(int(answers.file_answers[image])),
    )
