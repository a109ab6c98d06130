"""What the report of a model has beside it, where it was trained."""

from collections.abc import Callable
from typing import Any

from sat_tf.presentation.charts import Line, LineChart, Point
from sat_tf.presentation.tables import Column, Table, digits, percent
from sat_tf.qat.finetune import Epoch, FineTuned, distances_in_words
from sat_tf.report.results import Results


def of_training(tuned: FineTuned, results: Results) -> dict[str, Any]:
    """The values of the report's template that a training fills."""
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

    def points(value: Callable[[Epoch], float]) -> list[Point]:
        return [(float(row.epoch), value(row)) for row in tuned.epochs]

    def chart(title: str, lines: list[Line], **options: Any) -> LineChart:
        ends = [f"{line.label} {line.points[-1][1]:.4g} in the end" for line in lines]
        summary = f"{title} over the epochs: {', '.join(ends)}."
        return LineChart(
            title=title, lines=lines, stages=[], across="epoch", summary=summary, **options
        )

    losses = [
        Line(label="training", points=points(lambda row: row.loss), colour="var(--curve)"),
        Line(label="held out", points=points(lambda row: row.held_out_loss), colour="var(--other)"),
    ]
    scores = points(lambda row: 100.0 * row.score)
    curves = [
        chart(
            "Loss",
            losses,
            logarithmic=True,
            caption="The two losses are not to be compared: the held-out one is of the classes "
            "alone, that of training has the answers of the float model.",
        ),
        chart(
            f"{title.capitalize()} in percent",
            [Line(label="held out", points=scores, colour="var(--other)")],
            least=0.0,
            most=100.0,
        ),
    ]
    return {
        "verb": "Trained",
        "training": {name: words for name, words in facts.items() if words},
        "curves": [curve.to_figure() for curve in curves],
        "num_epochs": len(tuned.epochs) - 1,
        "epochs": Table(columns=columns, rows=tuned.epochs).to_html("Epochs"),
    }
