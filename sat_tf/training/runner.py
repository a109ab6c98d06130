"""A whole run: data, float stage, quantized stage, deploy tail, TFLite file, certificate."""

import contextlib
import dataclasses
import pathlib
import tempfile
import time

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

import sat_tf
from sat_tf import data, models
from sat_tf.data import ImageSet
from sat_tf.export.deployed import DeployedModel
from sat_tf.messages import list_problems
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import run_folder
from sat_tf.training.config import Config
from sat_tf.training.config_file import config_text
from sat_tf.training.curves import draw_curves
from sat_tf.training.deploy_tail import train_deploy_tail
from sat_tf.training.deployment import deploy
from sat_tf.training.distribution import make_strategy, writes_files
from sat_tf.training.environment import describe_environment
from sat_tf.training.errors import RunError
from sat_tf.training.results import Results
from sat_tf.training.run_folder import RunFolder
from sat_tf.training.stage import Run, batch_size_problems, held_out_top1, train_stage
from sat_tf.wholefile import written_whole

# What a policy says of bits, all of which the float stage leaves out.
_BITS = ("weight_bits", "activation_bits", "stream_bits")


def float_policy(policy: BitPolicy) -> BitPolicy:
    """The policy of the float stage: the same variant of the method, nothing rounded or clipped.

    Weights are clamped and rescaled from the start, so that quantization later changes as little
    as it can (the paper's float model).
    """
    overrides = {
        pattern: {name: value for name, value in fields.items() if name not in _BITS}
        for pattern, fields in policy.overrides.items()
    }
    return dataclasses.replace(
        policy, weight_bits=None, activation_bits=None, latent_start="as_is", overrides=overrides
    )


def load_images(config: Config) -> ImageSet:
    """Loads the data set of a run.

    Raises:
        RunError: an option is out of its range, or a batch is larger than the data set.
    """
    try:
        images = data.load(config.data.name, **config.data.options)
    except ValueError as error:
        raise RunError(f"data.options: {error}") from error
    problems = batch_size_problems(config, images)
    if problems:
        raise RunError(list_problems("config", problems))
    return images


def build_models(config: Config, images: ImageSet) -> tuple[keras.Model, keras.Model]:
    """Builds the float model of a run, plain and with clamped weights.

    Both stages are tried out, so that a policy that does not fit the model is an error before the
    training and not after half of it.

    Raises:
        RunError: an option is out of its range, or the policy does not fit.
    """
    try:
        plain = models.build(
            config.model.name,
            image_size=images.image_size,
            num_classes=images.num_classes,
            seed=config.seed,
            **config.model.options,
        )
        clamped = sat_tf.quantize_model(plain, float_policy(config.policy))
        sat_tf.requantize(clamped, config.policy)
    except ValueError as error:
        raise RunError(str(error)) from error
    return plain, clamped


def calibrate(run: Run, model: keras.Model, *, clipping_levels: bool) -> None:
    """Calibrates a model in place, on images of the training set drawn with the run's seed.

    Raises:
        RunError: it met activations that are not finite.
    """
    pixels = run.images.train_images
    count = min(run.config.calibration.num_images, len(pixels))
    # Drawn at random, because many data sets are in the order of their classes.
    chosen = np.random.RandomState(run.config.seed).permutation(len(pixels))[:count]
    try:
        sat_tf.calibrate(model, pixels[chosen], num_images=count, clipping_levels=clipping_levels)
    except ValueError as error:
        raise RunError(str(error)) from error


def run_stage(run: Run, name: str, start: keras.Model, file: str) -> tuple[keras.Model, float]:
    """Trains one stage, finishes its model and saves it.

    The statistics are measured anew where the configuration asks for it, and the biases of a
    quantized model take values that an integer file holds, so that what is measured is shipped.

    Args:
        run: what it is a stage of.
        name: "float" or "quantized".
        start: the model it starts from.
        file: name of the saved model in the run folder.

    Returns:
        The model, and its held-out top-1.
    """
    model = train_stage(run, name, start)
    calibration = run.config.calibration
    if calibration.num_images and calibration.final_statistics:
        calibrate(run, model, clipping_levels=False)
    if name == "quantized":
        # A model without an integer form is saved as it is; the export then says what it lacks.
        with contextlib.suppress(ValueError):
            sat_tf.export.snap_biases(model)
    return model, finish_stage(run, name, model, file)


def run_deploy_tail(run: Run, start: keras.Model) -> tuple[DeployedModel, float]:
    """Trains the quantized model on the integers of its file, and saves it.

    Args:
        run: what it is the last stage of.
        start: the model of the quantized stage.

    Returns:
        The deployed model, and its held-out top-1.

    Raises:
        RunError: the model has no integer form, or training broke.
    """
    deployed = train_deploy_tail(run, start)
    return deployed, finish_stage(run, "deploy_tail", deployed, run_folder.QUANTIZED_MODEL)


def finish_stage(run: Run, name: str, model: keras.Model, file: str) -> float:
    """Saves the model of a stage, of a deployed one its quantized model; gives its top-1."""
    saved = model.quantized if isinstance(model, DeployedModel) else model
    with written_whole(run.folder.file(file)) as temporary:
        saved.save(temporary)
    top1 = held_out_top1(model, run.images)
    run.console.print(f"{name:9}  done: held-out top-1 {100 * top1:.2f} %", highlight=False)
    return top1


def train(config: Config, folder: RunFolder, console: Console) -> Results | None:
    """Runs everything, and fills the run folder as it goes.

    Args:
        config: what to do.
        folder: where the files go; nothing is written before data and models have been made.
        console: where to show progress.

    Returns:
        The results, or None where another worker has them.

    Raises:
        RunError: the configuration does not fit the data or the model, the folder cannot be
            written, or training broke.
    """
    strategy = make_strategy(config.distribution)
    if writes_files(strategy):
        return _train(config, folder, console, strategy)
    # Every worker has to take part in saving, but only one may write.
    with tempfile.TemporaryDirectory() as elsewhere:
        quiet = Console(quiet=True)
        _train(config, RunFolder(pathlib.Path(elsewhere)), quiet, strategy)
    return None


def _train(
    config: Config, folder: RunFolder, console: Console, strategy: tf.distribute.Strategy
) -> Results:
    start = time.perf_counter()
    keras.utils.set_random_seed(config.seed)
    images = load_images(config)
    plain, clamped = build_models(config, images)
    folder.start()
    folder.write_text(run_folder.CONFIG, config_text(config))
    folder.write_json(run_folder.ENVIRONMENT, describe_environment(config.seed))

    run = Run(config=config, images=images, folder=folder, strategy=strategy, console=console)
    clamped, float_top1 = run_stage(run, "float", clamped, run_folder.FLOAT_MODEL)
    if config.stages.quantized is None:
        with written_whole(folder.file(run_folder.CURVES)) as temporary:
            draw_curves(run.rows, config.name, temporary)
        results = Results(
            float_top1=float_top1,
            held_out_images=len(images.test_labels),
            parameters=plain.count_params(),
            seconds=time.perf_counter() - start,
        )
        folder.write_json(run_folder.RESULTS, results.to_dict())
        return results
    quantized = sat_tf.requantize(clamped, config.policy)
    if config.calibration.num_images:
        calibrate(run, quantized, clipping_levels=config.calibration.clipping_levels)
    quantized, quantized_top1 = run_stage(run, "quantized", quantized, run_folder.QUANTIZED_MODEL)
    measured, deployed_top1 = quantized, None
    if config.stages.deploy_tail is not None:
        measured, deployed_top1 = run_deploy_tail(run, quantized)
    with written_whole(folder.file(run_folder.CURVES)) as temporary:
        draw_curves(run.rows, config.name, temporary)
    report, certificate = deploy(
        measured,
        images,
        folder,
        float_head=config.export.float_head,
        verify_images=config.export.verify_images,
    )
    for warning in report.warnings:
        console.print(f"Note: {warning}", highlight=False, soft_wrap=True)
    results = Results(
        float_top1=float_top1,
        quantized_top1=quantized_top1,
        deployed_top1=deployed_top1,
        tflite_top1=certificate.top1["tflite"],
        held_out_images=len(images.test_labels),
        verified_images=min(config.export.verify_images, len(images.test_labels)),
        parameters=plain.count_params(),
        file_bytes=report.bytes,
        gzip_bytes=report.gzip_bytes,
        codes_compared=certificate.codes_compared,
        codes_differing=certificate.codes_differing,
        trained_differing=certificate.trained_differing,
        seconds=time.perf_counter() - start,
    )
    folder.write_json(run_folder.RESULTS, results.to_dict())
    return results
