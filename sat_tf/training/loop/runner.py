"""A whole run: data, float stage, quantized stage, deploy tail, TFLite file, certificate."""

import contextlib
import pathlib
import shutil
import warnings
from collections.abc import Callable, Iterator

import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf import data, models
from sat_tf.atomic_file import temporary_folder
from sat_tf.data.source import ImageSource
from sat_tf.export.deployed import DeployedModel, deployed_model
from sat_tf.export.snapping import snap_biases
from sat_tf.export.tflite.metadata import checked_metadata, label_text
from sat_tf.loading.load import bounded_variables, load_model
from sat_tf.messages import RunError, first_ones, list_problems
from sat_tf.qat.calibrate import StaleStatisticsWarning, calibrate, estimate_statistics
from sat_tf.qat.layout import inner_layer
from sat_tf.quantizers.input_range import InputRange
from sat_tf.training.config.config import Config, config_text
from sat_tf.training.interruption import Interruption
from sat_tf.training.loop.deploy_tail import train_deploy_tail
from sat_tf.training.loop.environment import describe_environment
from sat_tf.training.loop.outcome import conclude
from sat_tf.training.loop.outside_failures import (
    outside_failures_explained,
    reading_errors_explained,
)
from sat_tf.training.loop.stage import Run, batch_size_problems, held_out_metrics, train_stage
from sat_tf.training.loop.start import (
    check_range,
    check_range_of_teacher,
    float_start,
    is_ordinary,
    quantized_start,
    trained_float_model,
)
from sat_tf.training.loop.workers import expect_same_on_all_workers
from sat_tf.training.recipes.recipes import check_teacher
from sat_tf.training.report.results import Results
from sat_tf.training.state import run_folder
from sat_tf.training.state.history import EpochMetrics, from_csv
from sat_tf.training.state.run_folder import RunFolder
from sat_tf.training.state.run_state import (
    RunState,
    expect_same_config,
    expect_same_float_model,
    float_model_hash,
    settled,
)
from sat_tf.training.step.distribution import (
    from_first_worker,
    make_strategy,
    strategy_note,
    waiting_note,
    writes_files,
)
from sat_tf.training.step.fed_source import fed_range, fed_source
from sat_tf.training.step.learner import training_copy
from sat_tf.training.step.stage_plan import StepReport

# Twice those of the largest model in its published form; training holds several copies.
_MOST_WEIGHT_BYTES = 2**30
# A model, and the epoch whose weights it has where that was chosen; 0 is the start of the stage.
Candidate = tuple[int | None, keras.Model]
# Shares are read from a file with fewer digits where a run has been resumed.
_ROUNDING = 1e-6
_RESUME = "\nOnce the files can be read, the same command resumes the run."


def load_source(config: Config, *, replicas: int = 1) -> ImageSource:
    """Opens the data set of a run, whose images are pixels; see `fed_source`.

    Args:
        config: of the run.
        replicas: how many share a batch.

    Raises:
        RunError: an option is out of its range, or a batch is larger than the data set.
    """
    try:
        source = data.source(
            config.data.name, shift_pixels=config.data.shift_pixels, **config.data.options
        )
    except ValueError as error:
        raise RunError(f"data.options: {error}") from error
    problems = batch_size_problems(config, source, replicas)
    # Before the training, because they go into the file that ends it.
    problems += checked_metadata(None, source.class_names)[1]
    if source.num_classes == 1:
        named = "" if source.class_names is None else f" ({source.class_names[0]})"
        problems.append(
            f"data: received one class{named}, which every picture is in; expected two or more to "
            "tell apart; add a folder of other pictures."
        )
    if problems:
        raise RunError(list_problems("config", problems))
    return source


def about_data(source: ImageSource) -> list[str]:
    """Lines on what a run trains on."""
    named = "" if source.class_names is None else f" ({first_ones(source.class_names)})"
    return [
        f"{source.name}: {source.num_classes:,} classes{named}, {source.num_train:,} pictures to "
        f"train on, {source.num_test:,} held out, {source.image_size}x{source.image_size} pixels",
        *(f"Note: {note}" for note in source.notes),
    ]


def float_model(config: Config, source: ImageSource) -> tuple[keras.Model, InputRange]:
    """The float model that a run starts from: the trained one of a file, or one to be trained.

    The model of the quantized stage is built as well, and the file of a teacher read, so that what
    does not fit is an error before the training and not halfway through it.

    Returns:
        The model, and what it is fed for the pixels of the source.

    Raises:
        RunError: an option is out of its range, the file holds something else, or the policy does
            not fit.
    """
    model = trained_float_model(config, source)
    if model is None:
        model = float_start(config, _built(config, source))
    found = fed_range(quantized_start(config, model))
    check_teacher(config, source)
    return model, found


def _built(config: Config, source: ImageSource) -> keras.Model:
    if config.model is None:
        raise RunError("model: received none, expected a mapping with the name of a model.")
    problem = (
        f"for {config.model.name} with model.options={config.model.options}, "
        f"{source.num_classes:,} classes and images of {source.image_size} pixels, expected a "
        "smaller one; lower width_multiplier, stage_blocks, hidden_units or image_size"
    )
    try:
        with bounded_variables(_MOST_WEIGHT_BYTES, problem):
            return models.build(
                config.model.name,
                image_size=source.image_size,
                num_classes=source.num_classes,
                seed=config.seed,
                **config.model.options,
            )
    except ValueError as error:
        raise RunError(str(error)) from error


def calibrate_run(
    run: Run, model: keras.Model, *, clipping_levels: bool, keep_function: bool = False
) -> None:
    """Calibrates a model in place, on images of the training set drawn with the run's seed.

    Of an ordinary float model it estimates the statistics of BatchNormalization.

    Args:
        run: what it is a stage of.
        model: the model.
        clipping_levels: see `sat_tf.calibrate`.
        keep_function: see there; for a model that is not trained.

    Raises:
        RunError: activations are non-finite.
    """
    count = min(run.config.calibration.num_images, run.source.num_train)
    pixels = run.source.training_sample(count, seed=run.config.seed)
    try:
        with warnings.catch_warnings():
            if not keep_function:
                # Stale statistics are expected here: training comes next, or has just ended.
                warnings.simplefilter("ignore", StaleStatisticsWarning)
            if is_ordinary(model):
                estimate_statistics(model, pixels, num_images=count)
            else:
                calibrate(
                    model,
                    pixels,
                    num_images=count,
                    clipping_levels=clipping_levels,
                    keep_function=keep_function,
                )
    except ValueError as error:
        raise RunError(str(error)) from error


def finished(run: Run, name: str, model: keras.Model) -> keras.Model:
    """A trained model as it is saved.

    The statistics are measured again where the configuration asks for it, and the biases of a
    quantized model are snapped to values that an integer file holds, so that what is measured is
    what is shipped.

    Args:
        run: what it is a stage of.
        name: of the stage.
        model: as it was trained; it is changed.
    """
    calibration = run.config.calibration
    if calibration.num_images and calibration.final_statistics:
        run.say(f"{name:9}  measuring statistics again")
        calibrate_run(run, model, clipping_levels=False)
    return snapped(run, model) if name == "quantized" else model


def snapped(run: Run, model: keras.Model) -> keras.Model:
    """A quantized model with biases that an integer file holds; it is changed in place."""
    # A model without an integer form is saved as it is; the export then says what it lacks.
    with contextlib.suppress(ValueError):
        snap_biases(model, pack=run.config.export.pack)
    return model


def stage_model(
    run: Run,
    state: RunState,
    name: str,
    file: str,
    make: Callable[[], Iterator[Candidate]],
) -> keras.Model:
    """The model of a stage: read where the stage is done, otherwise trained and saved.

    Args:
        run: what it is a stage of.
        state: how far the run has come.
        name: of the stage.
        file: name of the saved model in the run folder.
        make: trains the model, and gives it as the stage ends; behind it, where the stage ends with
            its best epoch, what else is to be measured, the start last.

    Raises:
        RunError: the saved model is gone, or cannot be read.
    """
    if name in state.stages:
        path = run.folder.file(file)
        if file == run_folder.TUNED_MODEL and not path.is_file():
            # The end of a run has given it the name of the quantized one.
            path = run.folder.file(run_folder.QUANTIZED_MODEL)
        if not path.is_file():
            raise RunError(
                f"{path}: received no file, expected the model of the {name} stage, which is done; "
                "put it back, start over with --no-resume, or remove the folder."
            )
        return loaded(path, safe_mode=not run.config.training.trust_model)
    # A request to stop waits: within the stage until its next step, after it until the model is
    # saved.
    with run.interruption.deferred():
        candidates = make()
        if run.writes:
            model, metrics = best_of(run, name, candidates)
        else:
            _, model = next(candidates)
        saved = model.quantized if isinstance(model, DeployedModel) else model
        if run.writes:
            with run.folder.written(file) as temporary:
                saved.save(temporary)
            state.finish(name, metrics)
            shutil.rmtree(run.folder.file(run_folder.CHECKPOINTS) / name, ignore_errors=True)
            top1, remark = 100 * metrics["top1"], _remark(run, name, metrics)
            run.say(f"{name:9}  done: held-out top-1 {top1:.2f} %{remark}")
    return saved


def best_of(
    run: Run, name: str, candidates: Iterator[Candidate]
) -> tuple[keras.Model, dict[str, float]]:
    """The first candidate that is as good as the stage's best epoch; failing that, the best.

    Statistics that are measured again, and snapped biases, can take some of the accuracy away.

    Args:
        run: of the stage.
        name: of the stage.
        candidates: at least one.

    Returns:
        The model, and its held-out metrics, with `kept_epoch` where that was chosen.
    """
    measured: list[tuple[keras.Model, dict[str, float]]] = []
    for epoch, model in candidates:  # of which the first is trained now
        if not measured:
            run.say(f"{name:9}  measuring held-out accuracy")
        metrics = held_out_metrics(model, run.source)
        measured.append((model, metrics if epoch is None else {**metrics, "kept_epoch": epoch}))
        if epoch is None or metrics["top1"] >= run.best_measured(name) - _ROUNDING:
            break
    return max(measured, key=lambda pair: pair[1]["top1"])  # the first of equal ones


def _remark(run: Run, name: str, metrics: dict[str, float]) -> str:
    """Words behind an accuracy: what it is of, and how far it can be trusted."""
    epoch = metrics.get("kept_epoch")
    if name == "float" and run.config.training.float_model is not None:
        return "; the float model may have been trained on these very pictures"
    if epoch is None:
        return ""
    if epoch == 0:
        return ": the model before training, because no epoch was better"
    return f": the weights of epoch {epoch}, the best on these pictures"


def loaded(path: pathlib.Path, *, safe_mode: bool = True) -> keras.Model:
    """A saved model; see `load_model`.

    Raises:
        RunError: it cannot be read, or would run code.
    """
    try:
        return load_model(path, safe_mode=safe_mode)
    except ValueError as error:
        raise RunError(str(error)) from error


def train(
    config: Config,
    folder: RunFolder,
    console: Console,
    *,
    resume: bool | None = None,
    wait: bool = False,
    report_step: StepReport | None = None,
) -> Results | None:
    """Runs everything, or what is left of it, and fills the run folder as it goes.

    Args:
        config: what to do.
        folder: where the files go; nothing is written before data and models have been made.
        console: where to show progress.
        resume: resume the run in the folder (True), start over and move the old files aside
            (False), or resume if there is one (None).
        wait: for another process that trains in this folder, and take over what it leaves.
        report_step: called after every step, to show the progress of several runs.

    Returns:
        The results, or None where another worker has them.

    Raises:
        RunError: the configuration does not fit the data or the model, the folder cannot be
            written or holds a run of another configuration, the data cannot be read, or training
            diverged.
        Stopped: the run has been asked to stop, and can be resumed.
    """
    if resume is not False:
        expect_same_config(folder, config)
        expect_same_float_model(folder, config)
        if resume and not folder.holds_run:
            folder.require(run_folder.CONFIG)
        if folder.is_finished:
            console.print("This run is finished; these are its results.", highlight=False)
            return Results.read(folder)
        config = settled(folder, config)
    interruption = Interruption()
    with interruption.catching_signals(), temporary_folder() as elsewhere:
        if config.training.deterministic_ops:
            tf.config.experimental.enable_op_determinism()
        # Dropout then draws from generators that every step can set.
        keras.backend.experimental.enable_tf_random_generator()
        if note := waiting_note(config.distribution):
            console.print(note, highlight=False, markup=False, soft_wrap=True)
        strategy = make_strategy(config.distribution)
        keras.utils.set_random_seed(config.seed)
        writes = writes_files(strategy)
        pixels = load_source(config, replicas=strategy.num_replicas_in_sync)
        with outside_failures_explained(folder, strategy):
            expect_same_on_all_workers(strategy, config, pixels)
        start_model, fed = float_model(config, pixels)
        run = Run(
            config=config,
            source=fed_source(pixels, fed),
            folder=folder,
            strategy=strategy,
            console=console if writes else Console(quiet=True),
            writes=writes,
            # All workers record, because what one reads of a model, all do; one record is kept.
            records=folder if writes else RunFolder(pathlib.Path(elsewhere)),
            interruption=interruption,
            report_step=report_step,
        )
        for line in about_data(pixels):
            run.say(line)
        if note := strategy_note(config.distribution, strategy):
            run.say(note, style="yellow")
        if resume is False or not folder.holds_run:
            with reading_errors_explained(pixels):
                check_range(config, start_model, pixels, fed, run.console)
                check_range_of_teacher(config, pixels, fed)
        with (
            outside_failures_explained(folder, strategy),
            folder.held(wait=wait) if writes else contextlib.nullcontext(),
            reading_errors_explained(run.source, advice=_RESUME),
        ):
            if writes:
                _prepare_folder(run, start_over=resume is False)
            # The others read what the first worker has prepared.
            from_first_worker(strategy, [0])
            state = RunState.read(folder)
            state.expect_whole(config.stages.by_name())
            with state.timed() if writes else contextlib.nullcontext():
                return _train(run, state, start_model)


def _train(run: Run, state: RunState, start_model: keras.Model) -> Results | None:
    config, folder = run.config, run.folder
    run.rows[:] = _rows(folder)

    trained = stage_model(
        run,
        state,
        "float",
        run_folder.FLOAT_MODEL,
        lambda: _float(run, start_model),
    )
    if config.stages.quantized is None:
        return _results(run, state, None, start_model)
    quantized = stage_model(
        run, state, "quantized", run_folder.QUANTIZED_MODEL, lambda: _quantized(run, trained)
    )
    measured = quantized
    if config.stages.deploy_tail is not None:
        tuned = stage_model(
            run,
            state,
            "deploy_tail",
            run_folder.TUNED_MODEL,
            lambda: _deploy_tail(run, quantized),
        )
        export = config.export
        measured = deployed_model(tuned, float_head=export.float_head, pack=export.pack)
    return _results(run, state, measured, start_model)


def _results(
    run: Run, state: RunState, model: keras.Model | None, float_model: keras.Model
) -> Results | None:
    if not run.writes:
        return None
    parameters = sum(inner_layer(layer).count_params() for layer in float_model.layers)
    return conclude(run, state, model, parameters=parameters)


def _prepare_folder(run: Run, *, start_over: bool) -> None:
    if run.folder.holds_run and not start_over:
        run.say(f"Resuming the run in {run.folder.path}.")
        return
    run.folder.start()
    environment = describe_environment(run.config.seed)
    environment["float_model"] = float_model_hash(run.config)
    run.folder.write_json(run_folder.ENVIRONMENT, environment)
    if run.source.class_names is not None:
        run.folder.write_text(run_folder.LABELS, label_text(run.source.class_names))
    run.folder.write_text(run_folder.PREPROCESSING, run.source.preprocessing.to_json())
    # Last: a folder with a configuration is one that holds a run.
    run.folder.write_text(run_folder.CONFIG, config_text(run.config))


def _rows(folder: RunFolder) -> list[EpochMetrics]:
    return folder.read_rows(run_folder.METRICS, from_csv, "epochs with their metrics")


def _float(run: Run, start: keras.Model) -> Iterator[Candidate]:
    if run.config.training.float_model is None:
        start = finished(run, "float", train_stage(run, "float", start))
    yield None, start


def calibrated_start(run: Run, trained: keras.Model) -> keras.Model:
    """The model that the quantized stage of a run starts from, in the form in which it is shipped.

    Args:
        run: of the stage.
        trained: the float model; it is not changed.

    Raises:
        RunError: the policy does not fit the model, or activations are non-finite.
    """
    config, stage = run.config, run.config.stages.quantized
    quantized = quantized_start(config, trained)
    trains = stage is None or stage.trains
    if config.calibration.num_images:
        # A given model keeps its function, whether it is trained or not.
        keeps = not trains or config.training.float_model is not None
        levels = config.calibration.clipping_levels
        calibrate_run(run, quantized, clipping_levels=levels, keep_function=keeps)
    # The start that can be kept is measured as it would end.
    return snapped(run, quantized) if not trains or run.keeps_best("quantized") else quantized


def train_quantized(run: Run, start: keras.Model) -> Iterator[Candidate]:
    """Trains through the quantized stage, and gives what it can end with, the best guess first.

    Args:
        run: of the stage.
        start: see `calibrated_start`; it is not changed.
    """
    model = train_stage(run, "quantized", start)
    epoch = run.kept.get("quantized")
    if epoch is None:
        yield None, finished(run, "quantized", model)
        return
    if epoch:
        yield epoch, finished(run, "quantized", training_copy(model))
        yield epoch, snapped(run, model)
    yield 0, start


def _quantized(run: Run, trained: keras.Model) -> Iterator[Candidate]:
    start, stage = calibrated_start(run, trained), run.config.stages.quantized
    if stage is None or stage.trains:
        return train_quantized(run, start)
    return iter([(None, start)])


def _deploy_tail(run: Run, quantized: keras.Model) -> Iterator[Candidate]:
    tuned = train_deploy_tail(run, quantized)
    yield run.kept.get("deploy_tail"), tuned
