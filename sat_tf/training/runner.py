"""A whole run: data, float stage, quantized stage, deploy tail, TFLite file, certificate."""

import contextlib
import dataclasses
import pathlib
import shutil
import time
from collections.abc import Callable

import tensorflow as tf
import tf_keras as keras
from rich.console import Console

import sat_tf
from sat_tf import data, models
from sat_tf.data.arrays import ArraySource
from sat_tf.data.source import ImageSource
from sat_tf.export.deployed import DeployedModel, deployed_model
from sat_tf.messages import list_problems
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import run_folder
from sat_tf.training.config import Config
from sat_tf.training.config_file import config_text
from sat_tf.training.curves import draw_curves
from sat_tf.training.deploy_tail import train_deploy_tail
from sat_tf.training.deployment import deploy
from sat_tf.training.distribution import from_first_worker, make_strategy, writes_files
from sat_tf.training.environment import describe_environment
from sat_tf.training.errors import RunError
from sat_tf.training.history import EpochMetrics, from_csv
from sat_tf.training.interruption import Interruption
from sat_tf.training.results import Results
from sat_tf.training.run_folder import RunFolder
from sat_tf.training.run_state import RunState, expect_same_config
from sat_tf.training.stage import Run, batch_size_problems, held_out_metrics, train_stage
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


def load_source(config: Config) -> ImageSource:
    """Opens the data set of a run.

    Raises:
        RunError: an option is out of its range, or a batch is larger than the data set.
    """
    try:
        source = ArraySource(
            data.load(config.data.name, **config.data.options),
            shift_pixels=config.data.shift_pixels,
        )
    except ValueError as error:
        raise RunError(f"data.options: {error}") from error
    problems = batch_size_problems(config, source)
    if problems:
        raise RunError(list_problems("config", problems))
    return source


def build_models(config: Config, source: ImageSource) -> tuple[keras.Model, keras.Model]:
    """Builds the float model of a run, plain and with clamped weights.

    Both stages are tried out, so that a policy that does not fit the model is an error before the
    training and not after half of it.

    Raises:
        RunError: an option is out of its range, or the policy does not fit.
    """
    try:
        plain = models.build(
            config.model.name,
            image_size=source.image_size,
            num_classes=source.num_classes,
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
    count = min(run.config.calibration.num_images, run.source.num_train)
    pixels = run.source.training_sample(count, seed=run.config.seed)
    try:
        sat_tf.calibrate(model, pixels, num_images=count, clipping_levels=clipping_levels)
    except ValueError as error:
        raise RunError(str(error)) from error


def finished(run: Run, name: str, model: keras.Model) -> keras.Model:
    """A trained model as it is saved.

    The statistics are measured anew where the configuration asks for it, and the biases of a
    quantized model take values that an integer file holds, so that what is measured is shipped.

    Args:
        run: what it is a stage of.
        name: of the stage.
        model: as it was trained; it is changed.
    """
    calibration = run.config.calibration
    if calibration.num_images and calibration.final_statistics:
        calibrate(run, model, clipping_levels=False)
    if name == "quantized":
        # A model without an integer form is saved as it is; the export then says what it lacks.
        with contextlib.suppress(ValueError):
            sat_tf.export.snap_biases(model)
    return model


def stage_model(
    run: Run, state: RunState, name: str, file: str, make: Callable[[], keras.Model]
) -> keras.Model:
    """The model of a stage: the saved one where the stage is done, one made and saved otherwise.

    Args:
        run: what it is a stage of.
        state: how far the run has come.
        name: of the stage.
        file: name of the saved model in the run folder.
        make: trains and finishes the model.
    """
    if name in state.stages:
        return loaded(run.folder.file(file))
    model = make()
    saved = model.quantized if isinstance(model, DeployedModel) else model
    if run.writes:
        metrics = held_out_metrics(model, run.source)
        with written_whole(run.folder.file(file)) as temporary:
            saved.save(temporary)
        state.finish(name, metrics)
        shutil.rmtree(run.folder.file(run_folder.CHECKPOINTS) / name, ignore_errors=True)
        top1 = 100 * metrics["top1"]
        run.console.print(f"{name:9}  done: held-out top-1 {top1:.2f} %", highlight=False)
    return saved


def loaded(path: pathlib.Path) -> keras.Model:
    """A saved model.

    Raises:
        RunError: it cannot be read.
    """
    try:
        return keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises many types on files that are none of its own.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"{path}: received a file that cannot be loaded ({reason}), expected a model that "
            "Keras has saved."
        ) from error


def train(
    config: Config, folder: RunFolder, console: Console, *, resume: bool | None = None
) -> Results | None:
    """Runs everything, or what is left of it, and fills the run folder as it goes.

    Args:
        config: what to do.
        folder: where the files go; nothing is written before data and models have been made.
        console: where to show progress.
        resume: go on with the run in the folder (True), start anew and keep the old files aside
            (False), or go on where there is one (None).

    Returns:
        The results, or None where another worker has them.

    Raises:
        RunError: the configuration does not fit the data or the model, the folder cannot be
            written, holds a run of another configuration, or training broke.
        Stopped: the run has been asked to stop, and can go on later.
    """
    if resume is not False:
        expect_same_config(folder, config)
        if resume and not folder.holds_run:
            folder.require(run_folder.CONFIG)
        if results := folder.read_json(run_folder.RESULTS):
            console.print("This run is finished; these are its results.", highlight=False)
            return Results.from_dict(results)
    interruption = Interruption()
    with interruption.watched():
        if config.training.deterministic_ops:
            tf.config.experimental.enable_op_determinism()
        # Dropout then draws from variables, which checkpoints hold.
        keras.backend.experimental.enable_tf_random_generator()
        strategy = make_strategy(config.distribution)
        keras.utils.set_random_seed(config.seed)
        writes = writes_files(strategy)
        run = Run(
            config=config,
            source=load_source(config),
            folder=folder,
            strategy=strategy,
            console=console if writes else Console(quiet=True),
            writes=writes,
            interruption=interruption,
        )
        return _train(run, anew=resume is False)


def _train(run: Run, *, anew: bool) -> Results | None:
    start = time.perf_counter()
    config, folder = run.config, run.folder
    plain, clamped = build_models(config, run.source)
    if run.writes:
        _prepare_folder(run, anew=anew)
    # The others read what the first worker has prepared.
    from_first_worker(run.strategy, [0])
    state = RunState.read(folder)
    run.rows[:] = _rows(folder)

    trained = stage_model(
        run,
        state,
        "float",
        run_folder.FLOAT_MODEL,
        lambda: finished(run, "float", train_stage(run, "float", clamped)),
    )
    quantized = stage_model(
        run, state, "quantized", run_folder.QUANTIZED_MODEL, lambda: _quantized(run, trained)
    )
    measured = quantized
    if config.stages.deploy_tail is not None:
        tuned = stage_model(
            run,
            state,
            "deploy_tail",
            run_folder.QUANTIZED_MODEL,
            lambda: train_deploy_tail(run, quantized),
        )
        measured = deployed_model(tuned, float_head=config.export.float_head)
    if not run.writes:
        return None
    return _deploy(run, state, measured, plain.count_params(), start)


def _prepare_folder(run: Run, *, anew: bool) -> None:
    if run.folder.holds_run and not anew:
        run.console.print(f"Going on with the run in {run.folder.path}.", highlight=False)
        return
    run.folder.start()
    run.folder.write_json(run_folder.ENVIRONMENT, describe_environment(run.config.seed))
    # Last: a folder with a configuration is one that holds a run.
    run.folder.write_text(run_folder.CONFIG, config_text(run.config))


def _rows(folder: RunFolder) -> list[EpochMetrics]:
    file = folder.file(run_folder.METRICS)
    if not file.is_file():
        return []
    try:
        return from_csv(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: {error}\nStart anew with --no-resume.") from error


def _quantized(run: Run, trained: keras.Model) -> keras.Model:
    calibration = run.config.calibration
    quantized = sat_tf.requantize(trained, run.config.policy)
    if calibration.num_images:
        calibrate(run, quantized, clipping_levels=calibration.clipping_levels)
    return finished(run, "quantized", train_stage(run, "quantized", quantized))


def _deploy(
    run: Run, state: RunState, model: keras.Model, parameters: int, start: float
) -> Results:
    """Draws the curves, exports and verifies, and writes the results."""
    config, folder = run.config, run.folder
    with written_whole(folder.file(run_folder.CURVES)) as temporary:
        draw_curves(run.rows, config.name, temporary)
    report, certificate = deploy(
        model,
        run.source,
        folder,
        float_head=config.export.float_head,
        verify_images=config.export.verify_images,
    )
    for warning in report.warnings:
        run.console.print(f"Note: {warning}", highlight=False, soft_wrap=True)
    results = Results(
        float_top1=state.stages["float"]["top1"],
        quantized_top1=state.stages["quantized"]["top1"],
        deployed_top1=state.stages.get("deploy_tail", {}).get("top1"),
        tflite_top1=certificate.top1["tflite"],
        held_out_images=run.source.num_test,
        verified_images=min(config.export.verify_images, run.source.num_test),
        parameters=parameters,
        file_bytes=report.bytes,
        gzip_bytes=report.gzip_bytes,
        codes_compared=certificate.codes_compared,
        codes_differing=certificate.codes_differing,
        trained_differing=certificate.trained_differing,
        seconds=time.perf_counter() - start,
    )
    folder.write_json(run_folder.RESULTS, results.to_dict())
    return results
