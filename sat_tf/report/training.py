"""What the report of a model has beside it, where it was trained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sat_tf.presentation.charts import Line, LineChart, Point
from sat_tf.presentation.tables import Column, Table, digits, percent
from sat_tf.qat.finetune import Epoch, FineTuned, distances_in_words
from sat_tf.report.results import Results

# How charts of a loss and of a share in percent are drawn.
OF_LOSS: Mapping[str, Any] = {"logarithmic": True}
OF_SHARE: Mapping[str, Any] = {"least": 0.0, "most": 100.0}
# This stands below the chart of a training that asks for more than the labels, or for less.
OTHER_LOSS = (
    "The two losses are not to be compared: the held-out one is of the {} alone, that of training "
    "has {}."
)


def template_values(
    curves: Sequence[LineChart], epochs: Table[Any], facts: Mapping[str, str]
) -> dict[str, Any]:
    """The values of the report's template that a training fills."""
    return {
        "training": {name: words for name, words in facts.items() if words},
        "curves": [curve.to_figure() for curve in curves],
        "epochs": epochs.to_html("Epochs"),
    }


def of_training(tuned: FineTuned, results: Results) -> dict[str, Any]:
    """The same for a fine-tuned model."""
    title, number, share = results.score.title, digits(".4g"), percent()
    columns: list[Column[Epoch]] = [
        Column("epoch", lambda row: row.epoch, number=True),
        Column("learning rate", lambda row: row.learning_rate, number, number=True),
        Column("loss", lambda row: row.loss if row.epoch else None, number, number=True),
        Column(f"held-out {title}", lambda row: row.score, share, number=True),
        Column("held-out loss", lambda row: row.held_out_loss, number, number=True),
    ]
    facts = {
        "Learning rate": results.rate(),
        "Trial": distances_in_words(tuned.tried) if tuned.tried else "",
        "Weights of epoch": results.kept(),
    }

    def line(label: str, value: Callable[[Epoch], float], colour: str) -> Line:
        points: list[Point] = [(float(row.epoch), value(row)) for row in tuned.epochs]
        return Line(label=label, points=points, colour=colour)

    losses = [
        line("training", lambda row: row.loss, "var(--curve)"),
        line("held out", lambda row: row.held_out_loss, "var(--other)"),
    ]
    scores = [line("held out", lambda row: 100.0 * row.score, "var(--other)")]
    caption = OTHER_LOSS.format("classes", "the answers of the float model")
    curves = []
    for heading, lines, options in (
        ("Loss", losses, {**OF_LOSS, "caption": caption}),
        (f"{title.capitalize()} in percent", scores, OF_SHARE),
    ):
        ends = ", ".join(f"{each.label} {each.points[-1][1]:.4g} in the end" for each in lines)
        summary = f"{heading} over the epochs: {ends}."
        curves.append(
            LineChart(
                title=heading, lines=lines, stages=[], across="epoch", summary=summary, **options
            )
        )
    return {
        "verb": "Trained",
        "num_epochs": len(tuned.epochs) - 1,
        **template_values(curves, Table(columns=columns, rows=tuned.epochs), facts),
    }
