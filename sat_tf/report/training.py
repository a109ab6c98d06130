"""What the report of a model has beside it, where it was trained."""

from typing import Any

from sat_tf.presentation.tables import digits, percent
from sat_tf.qat.finetune import FineTuned, distances_in_words
from sat_tf.report.curves import CHARTS, HELD_OUT, LOSS, Metric, epochs_table, learning_curves
from sat_tf.report.results import Results


def of_training(tuned: FineTuned, results: Results) -> dict[str, Any]:
    """The values of the report's template that a training fills."""
    title, number = results.score.title, digits(".4g")
    score = f"{title.capitalize()} (%)"
    metrics = {
        "epoch": Metric("epoch"),
        "learning_rate": Metric("learning rate", number),
        "loss": Metric("loss", number, "", LOSS, "training"),
        "score": Metric(f"held-out {title}", percent(), "", score, "held out", HELD_OUT),
        "held_out_loss": Metric("held-out loss", number, "", LOSS, "held out", HELD_OUT),
    }
    curves = learning_curves(
        tuned.epochs,
        metrics,
        {LOSS: CHARTS[LOSS], score: (100.0, {})},
        across="epoch",
        targets="the answers of the float model",
    )
    return {
        "verb": "Trained",
        "training": {
            "Learning rate": results.rate(),
            "Trial": distances_in_words(tuned.tried) if tuned.tried else "",
            "Weights of epoch": results.kept(),
        },
        "curves": curves,
        "num_epochs": len(tuned.epochs) - 1,
        "epochs": epochs_table(tuned.epochs, metrics),
    }
