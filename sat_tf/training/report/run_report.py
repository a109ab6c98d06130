"""What the report of a run has beside that of its model: curves, epochs and settings."""

from collections.abc import Mapping
from typing import Any

from sat_tf import output_folder
from sat_tf.presentation.charts import save_charts
from sat_tf.qat.policy_fields import known_weights
from sat_tf.report import report
from sat_tf.report.curves import ACCURACY, LOSS, epochs_table, learning_curves
from sat_tf.report.results import Results
from sat_tf.training.state import run_folder
from sat_tf.training.state.history import EPOCHS, EpochMetrics
from sat_tf.training.state.run_folder import RunFolder
from sat_tf.yaml_text import load_yaml


def write_curves(folder: RunFolder) -> None:
    """Writes curves.png, the loss and the accuracy of a run that has trained."""
    epochs = EpochMetrics.read(folder)
    if not epochs:
        return
    settings = _settings(folder)
    curves = learning_curves(epochs, EPOCHS, targets=_targets(settings))
    shown = (ACCURACY, LOSS)
    drawn = [one for title in shown for one in curves if one.title == title]
    with folder.written(run_folder.CURVES) as temporary:
        save_charts(drawn, str(settings.get("name", "")), temporary)


def _settings(folder: RunFolder) -> dict[str, Any]:
    """The configuration of a run; empty where it cannot be read, and is shown as it is written."""
    try:
        settings = load_yaml(folder.read_text(output_folder.CONFIG))
    except ValueError:
        settings = None
    return settings if isinstance(settings, dict) else {}


def _weights(settings: Mapping[str, Any]) -> str:
    """What quantizes the weights of inner layers, and why; "" where the run says no bits."""
    policy = settings.get("policy")
    if not isinstance(policy, dict) or policy.get("weight_bits") is None:
        return ""
    bits, name = policy["weight_bits"], known_weights(policy)
    if policy.get("weight_quantizer") is not None:
        return name
    is_best = name == known_weights({"weight_bits": bits})
    best = f", and it is the best known at {bits} bits" if is_best else ""
    return f"{name}: the policy names none{best}"


def write_report(folder: RunFolder) -> None:
    """Writes report.html from the files of a run, also of one that is not finished."""
    settings = _settings(folder)
    epochs = EpochMetrics.read(folder)
    curves = learning_curves(epochs, EPOCHS, targets=_targets(settings)) if epochs else []
    training: dict[str, str] = {}
    if folder.file(output_folder.RESULTS).exists():
        results = Results.read(folder)
        training = {
            "Learning rate": results.rate(),
            "Weights of epoch": results.kept(),
        }
    if any(training.values()):
        training["Weights by"] = _weights(settings)
    environment = {
        name.replace("_", " "): ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
        for name, value in (folder.read_json(run_folder.ENVIRONMENT) or {}).items()
        if value is not None
    }
    of_run: dict[str, Any] = {
        "name": str(settings.get("name", "")),
        "is_run": folder.holds_run,
        "curves": [chart.to_figure() for chart in curves],
        "training": {name: words for name, words in training.items() if words},
        "num_epochs": len(epochs),
        "epochs": epochs_table(epochs, EPOCHS),
        "environment": environment,
        "config": folder.read_text(output_folder.CONFIG),
    }
    report.write_report(folder, **of_run, **({"verb": "Trained"} if epochs else {}))


def _targets(settings: Mapping[str, Any]) -> str:
    """Names the targets that recipes give a model in training beside the labels."""
    recipes = settings.get("recipes")
    if not isinstance(recipes, dict):
        return ""
    found = {"the teacher": "distillation", "smoothed labels": "label_smoothing"}
    return " and ".join(words for words, recipe in found.items() if recipes.get(recipe))
