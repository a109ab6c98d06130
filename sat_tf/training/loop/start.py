"""The start of a run: its data and models, and whether they fit each other and the settings."""

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import subprocess
import warnings
from typing import Any

import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf.analysis.range_accuracy import USUAL_IMAGES, range_accuracies
from sat_tf.exact.tflite.input_range import PIXELS, InputRange
from sat_tf.exact.tflite.metadata import checked_metadata
from sat_tf.graph.network import Network
from sat_tf.loading.load import bounded_variables
from sat_tf.messages import ProblemsError, RunError, first_ones, say, value_errors_as_run_errors
from sat_tf.qat.inputs import input_ranges
from sat_tf.qat.layout import GuessedClippingLevelsWarning
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.requantize import requantize
from sat_tf.qat.scheme import quantize_model
from sat_tf.qat.wrapper import quantized_layers
from sat_tf.training import data, models
from sat_tf.training.config import Config
from sat_tf.training.data.source import ImageSource
from sat_tf.training.distribution import from_all_workers
from sat_tf.training.run_folder import differences, float_model_hash
from sat_tf.training.trained_models import read_teacher, trained_float_model
from sat_tf.version import COMPUTING, __version__, installed_versions

# The largest published model has half as many bytes of weights; training holds several copies.
_MOST_WEIGHT_BYTES = 2**30
# These settings name files, which may be elsewhere on another machine.
_OF_A_MACHINE = {
    *("data.options.data_dir", "data.options.cache_dir", "training.float_model"),
    *("recipes.distillation.teacher", "training.trust_model"),
}
_PACKAGES = (*COMPUTING, "scikit-learn", "matplotlib", "pillow")


def load_source(config: Config, *, replicas: int = 1) -> ImageSource:
    """Opens the data set of a run, which fits its configuration."""
    try:
        source = data.source(
            config.data.name, shift_pixels=config.data.shift_pixels, **config.data.options
        )
    except ValueError as error:
        raise RunError(f"data.options: {error}") from error
    problems = batch_size_problems(config, source, replicas)
    # Class names go into the file that ends the training, and are checked before it.
    problems += checked_metadata(None, source.class_names)[1]
    if source.num_classes == 1:
        named = "" if source.class_names is None else f" ({source.class_names[0]})"
        problems.append(
            f"data: received one class{named}, which every picture is in; expected two or more to "
            "tell apart; add a folder of other pictures."
        )
    if problems:
        raise RunError(ProblemsError("config", problems))
    return source


def batch_size_problems(config: Config, source: ImageSource, replicas: int = 1) -> list[str]:
    """Lists problems of batch sizes and steps that depend on the data and the devices."""
    problems = []
    for name, stage in config.stages.by_name().items():
        if name == "float" and config.training.float_model is not None:
            continue  # it is loaded, not trained
        if stage.batch_size > source.num_train:
            problems.append(
                f"stages.{name}.batch_size={stage.batch_size}: expected at most "
                f"{source.num_train}, the number of training images; lower it."
            )
            continue
        if stage.batch_size < replicas:
            problems.append(
                f"stages.{name}.batch_size={stage.batch_size}: expected at least {replicas}, the "
                "number of devices that share a batch; raise it, or train on fewer."
            )
        steps_per_epoch = stage.steps_per_epoch(source.num_train)
        total = stage.total_steps(steps_per_epoch)
        if stage.warmup_epochs * steps_per_epoch >= total and stage.trains:
            problems.append(
                f"stages.{name}.warmup_epochs={stage.warmup_epochs:g}: "
                f"{stage.warmup_epochs * steps_per_epoch:g} steps of {total}; expected a warm-up "
                "shorter than the stage; lower it."
            )
    return problems


def about_data(source: ImageSource) -> list[str]:
    """Lines about the data set of a run."""
    named = "" if source.class_names is None else f" ({first_ones(source.class_names)})"
    return [
        f"{source.name}: {source.num_classes:,} classes{named}, {source.num_train:,} pictures to "
        f"train on, {source.num_test:,} held out, {source.image_size}x{source.image_size} pixels",
        *(f"Note: {note}" for note in source.notes),
    ]


def expect_same_on_all_workers(
    strategy: tf.distribute.Strategy, config: Config, source: ImageSource
) -> None:
    """Raises the same error on all workers unless they are to do the same; all call it together."""
    facts = {
        **config.model_dump(),
        "the float model": float_model_hash(config),
        "images to train on": source.num_train,
        "held-out images": source.num_test,
        "classes": source.num_classes,
        "sat-tf": __version__,
        "TensorFlow": tf.__version__,
    }
    # Text makes every worker see the same values.
    chief, *workers = map(json.loads, from_all_workers(strategy, json.dumps(facts, default=str)))
    problems = [
        f"{key}: {chief_value!r} in worker 0, {worker_value!r} in worker {number}"
        for number, worker in enumerate(workers, start=1)
        for key, chief_value, worker_value in differences(chief, worker)
        if key not in _OF_A_MACHINE
    ]
    if problems:
        raise RunError(
            ProblemsError(
                "workers of one run that are not to do the same",
                problems,
                "Start the same command with the same settings on all of them.",
            )
        )


def float_model(config: Config, source: ImageSource) -> tuple[keras.Model, InputRange]:
    """The float model that a run starts from: the trained one of a file, or one to be trained.

    The model of the quantized stage is built as well, and the file of a teacher read, so that what
    does not fit is an error before the training and not halfway through it.
    """
    model = trained_float_model(config, source)
    if model is None:
        plan = config.model
        if plan is None:
            raise RunError("model: received none, expected a mapping with the name of a model.")
        problem = (
            f"for {plan.name} with model.options={plan.options}, {source.num_classes:,} classes "
            f"and images of {source.image_size} pixels, expected a smaller one; lower "
            "width_multiplier, stage_blocks, hidden_units or image_size"
        )
        with value_errors_as_run_errors(), bounded_variables(_MOST_WEIGHT_BYTES, problem):
            plain = models.build(
                plan.name,
                image_size=source.image_size,
                num_classes=source.num_classes,
                seed=config.seed,
                **plan.options,
            )
        model = float_start(config, plain)
    quantized = quantized_start(config, model)
    read_teacher(config, source)
    return model, fed_range(quantized)


def fed_range(model: keras.Model) -> InputRange:
    """The input range of a quantized model with one input; pixels if that is not an image."""
    network = Network(model)
    return input_ranges(network).get(network.inputs[0], PIXELS)


@value_errors_as_run_errors()
def float_start(config: Config, plain: keras.Model) -> keras.Model:
    """The model that the float stage trains: `plain` itself, or a copy with clamped weights.

    The copy is quantized by the policy with nothing rounded or clipped, so that quantization later
    changes as little as it can: the paper's float model.
    """
    if config.training.start == "vanilla":
        return plain
    bits = ("weight_bits", "activation_bits", "stream_bits")
    overrides = {
        pattern: {name: value for name, value in fields.items() if name not in bits}
        for pattern, fields in config.policy.overrides.items()
    }
    policy: BitPolicy = dataclasses.replace(
        config.policy,
        weight_bits=None,
        activation_bits=None,
        latent_start="as_is",
        overrides=overrides,
    )
    return quantize_model(plain, policy)


@value_errors_as_run_errors()
def quantized_start(config: Config, float_model: keras.Model) -> keras.Model:
    """The model that the quantized stage trains, still to be calibrated.

    One with clamped weights keeps its latent weights, as in the paper. An ordinary one keeps its
    function, whatever `latent_start` of the policy: its weights become atanh(r W / max|W|), and a
    fixed gain gives the quantized weights the magnitude of the float ones.
    """
    if quantized_layers(float_model):
        return requantize(float_model, config.policy)
    policy = dataclasses.replace(config.policy, latent_start="keep_function")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
        return quantize_model(float_model, policy)


def check_range(
    config: Config, model: keras.Model, pixels: ImageSource, given: InputRange, console: Console
) -> None:
    """Measures trained models of files in the range they are to be fed, and in other usual ranges.

    These are `training.float_model`, and the teacher, which is fed what the student is.
    """
    plan, teacher = config.recipes.distillation, read_teacher(config, pixels)
    start = config.training.float_model
    for key, path, trained in (
        ("training.float_model", start, None if start is None else model),
        ("recipes.distillation.teacher", plan and plan.teacher, teacher),
    ):
        if trained is None:
            continue
        images, labels = pixels.held_out_sample(USUAL_IMAGES)
        accuracies = range_accuracies(trained, images, labels, given)
        if accuracies is None or accuracies.fitting is None:
            continue
        problem = f"{key}={path!r}: {accuracies.problem}"
        if trained is teacher:
            raise RunError(
                f"{problem}; save it with a Rescaling or a Normalization layer in front that "
                "converts the student's range to this, or set "
                f"policy.input_range={accuracies.setting} for both."
            )
        if not config.policy.states_input_range:
            raise RunError(f"{problem}; set policy.input_range={accuracies.setting}.")
        say(console, f"Note: {problem}.", style="yellow")


def describe_environment(seed: int) -> dict[str, Any]:
    """Describes versions, machine, devices and commit in plain values, for JSON."""
    details = tf.config.experimental.get_device_details
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "sat_tf": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **installed_versions(_PACKAGES),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        # An operation takes as many threads as there are processors, unless this is set.
        "threads": os.environ.get("TF_NUM_INTRAOP_THREADS"),
        "devices": [
            f"{device.device_type}: {details(device).get('device_name', device.name)}"
            for device in tf.config.list_physical_devices()
        ],
    }


def _commit() -> str | None:
    """The commit of the checkout this package runs from; "+" where files have changed since."""
    checkout = pathlib.Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, cwd=checkout, stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    return None
