"""Trains, evaluates or exports a low-bit image model from a YAML configuration.

Without flags it trains on scikit-learn's handwritten digits, which takes minutes and downloads
nothing. What else it can train on stands under `data.name` in the configurations: digits, folder,
tfds (ImageNet by default) and tfrecords. A run that was stopped goes on.

    python examples/train_imagenet.py
    python examples/train_imagenet.py --config=configs/digits/mobilenet_v2_w2a2.yaml --seed=1
    python examples/train_imagenet.py --config=configs/imagenet/mobilenet_v2.yaml
    python examples/train_imagenet.py --set=stages.float.epochs=3 --set=data.shift_pixels=0
    python examples/train_imagenet.py --mode=evaluate --run_dir=runs/digits_mobilenet_v2_w4a4
"""

import sys

from absl import app, flags
from rich.console import Console

from sat_tf.commands import main as commands
from sat_tf.commands import train
from sat_tf.commands.models import load_model, quiet_tensorflow
from sat_tf.messages import ProblemsError, RunError, value_errors_as_run_errors
from sat_tf.output_folder import CONFIG, QUANTIZED_MODEL
from sat_tf.training.config import read_config
from sat_tf.training.run_folder import RunFolder

_CONFIG = flags.DEFINE_string("config", None, "YAML file of the run; default: the digits demo.")
_SET = flags.DEFINE_multi_string(
    "set", [], "One setting as key=value with a dotted key; can be given several times."
)
_RUN_DIR = flags.DEFINE_string(
    "run_dir", None, "Where the files of the run are; default: runs/<name in the configuration>."
)
_MODE = flags.DEFINE_enum("mode", "train", ["train", "evaluate", "export"], "What to do.")
_RESUME = flags.DEFINE_boolean(
    "resume",
    None,
    "Resume the run in the folder, or start over and move its files aside; default: resume if "
    "there is one.",
)
_SEED = flags.DEFINE_integer("seed", None, "Overrides the seed in the configuration.")


def _run() -> bool:
    seeds = [] if _SEED.value is None else [f"seed={_SEED.value}"]
    config = train.load_config(_CONFIG.value, [*_SET.value, *seeds])
    folder = train.choose_folder(config, _RUN_DIR.value)
    if _MODE.value == "train":
        return train.train(config, folder, Console(), resume=_RESUME.value)
    _refuse_settings()
    if _MODE.value == "evaluate":
        evaluate(folder, Console())
    else:
        sys.exit(commands.main(["export", str(folder.path)]))
    return True


def evaluate(folder: RunFolder, console: Console) -> None:
    """Prints the held-out top-1 of a finished run's quantized model."""
    folder.require(CONFIG, QUANTIZED_MODEL)
    path, config = folder.file(QUANTIZED_MODEL), read_config(folder.file(CONFIG))
    quiet_tensorflow()
    from sat_tf.training.loop.runner import reading_errors_explained
    from sat_tf.training.loop.stage import held_out_metrics
    from sat_tf.training.loop.start import fed_range, load_source
    from sat_tf.training.trained_models import data_problems

    model, source = load_model(path), load_source(config)
    if problems := data_problems(model, source.image_size, source.num_classes):
        raise RunError(ProblemsError(str(path), problems))
    with value_errors_as_run_errors(path), reading_errors_explained(source):
        metrics = held_out_metrics(model, source, fed_range(model))
    console.print(
        f"{config.name}: held-out top-1 {100 * metrics['top1']:.2f} % ({metrics['images']} images)",
        highlight=False,
    )


def _refuse_settings() -> None:
    """Raises an error for settings that only training takes."""
    given = [f"--set {override}" for override in _SET.value]
    given += [] if _SEED.value is None else [f"--seed {_SEED.value}"]
    if given:
        raise RunError(
            f"received {', '.join(given)} with --mode={_MODE.value}, expected none: a finished run "
            "keeps its own configuration; leave them out, or train again."
        )


def main(argv: list[str]) -> None:
    """Runs what the flags ask for."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags such as --config=FILE.")
    sys.exit(commands.report_errors(_run))


if __name__ == "__main__":
    app.run(main)
