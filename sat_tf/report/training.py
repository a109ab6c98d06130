"""What the report of a model has beside it, where it was trained."""

from typing import Any

from sat_tf.presentation.charts import Line
from sat_tf.presentation.tables import digits, percent
from sat_tf.qat.finetune import FineTuned, distances_in_words
from sat_tf.report.curves import ACCURACY, CHARTS, LOSS, Metric, epochs_table, learning_curves
from sat_tf.report.results import Results


def of_training(tuned: FineTuned, results: Results) -> dict[str, Any]:
    """The values of the report's template that a training fills."""
    title, number = results.score.title, digits(".4g")
    score = f"{title.capitalize()} in percent"
    _, unit, options = CHARTS[ACCURACY]
    training = Line(label="training", colour="var(--curve)")
    held_out = Line(label="held out", colour="var(--other)")
    metrics = {
        "epoch": Metric("epoch"),
        "learning_rate": Metric("learning rate", number),
        "loss": Metric("loss", number, chart=LOSS, line=training),
        "score": Metric(f"held-out {title}", percent(), chart=score, line=held_out),
        "held_out_loss": Metric("held-out loss", number, chart=LOSS, line=held_out),
    }
    facts = {
        "Learning rate": results.rate(),
        "Trial": distances_in_words(tuned.tried) if tuned.tried else "",
        "Weights of epoch": results.kept(),
    }
    curves = learning_curves(
        tuned.epochs,
        metrics,
        {LOSS: CHARTS[LOSS], score: (f"{title} in percent", unit, options)},
        across="epoch",
        targets="the answers of the float model",
    )
    return {
        "verb": "Trained",
        "training": {name: words for name, words in facts.items() if words},
        "curves": [curve.to_figure() for curve in curves],
        "num_epochs": len(tuned.epochs) - 1,
        "epochs": epochs_table(tuned.epochs, metrics),
    }
