"""A whole run, in order: configuration, data, the stages, the file with its certificate."""

import contextlib
import errno
import re
import shutil
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf import output_folder
from sat_tf.exact.tflite.metadata import label_text
from sat_tf.export.lowering.pipeline import snap_biases
from sat_tf.interruption import ending_at_once
from sat_tf.loading.load import load_model
from sat_tf.loading.trust import UntrustedModelError
from sat_tf.messages import ReadingError, RunError, say, value_errors_as_run_errors
from sat_tf.qat.calibrate import StaleStatisticsWarning, calibrate, estimate_statistics
from sat_tf.qat.images import fed_batches
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.reconstruction.fit import Checkpoint
from sat_tf.qat.reconstruction.fitted import fit
from sat_tf.qat.wrapper import quantized_layers
from sat_tf.report.results import Results
from sat_tf.training import run_folder
from sat_tf.training.config import Config, config_text
from sat_tf.training.data.source import ImageSource
from sat_tf.training.distribution import (
    from_first_worker,
    make_strategy,
    shard_of,
    strategy_note,
    waiting_note,
    writes_files,
)
from sat_tf.training.learner import training_copy
from sat_tf.training.loop.outcome import conclude
from sat_tf.training.loop.stage import Candidate, Run, held_out_metrics, train_stage
from sat_tf.training.loop.start import (
    about_data,
    check_range,
    describe_environment,
    expect_same_on_all_workers,
    float_model,
    load_source,
    quantized_start,
)
from sat_tf.training.run_folder import (
    MODELS,
    EpochMetrics,
    RunFolder,
    RunState,
    expect_same_run,
    float_model_hash,
)

_RESUME = "\nOnce the files can be read, the same command resumes the run."
_RESTORE = "put it back, start over with --no-resume, or remove the folder."


def train(
    config: Config,
    folder: RunFolder,
    console: Console,
    *,
    resume: bool | None = None,
    wait: bool = False,
) -> Results | None:
    """Runs everything, or what is left of it, and fills the run folder as it goes.

    Nothing is written before data and models have been made. To `resume` is to go on with the run
    in the folder (True), to start over and move the old files aside (False), or to go on if there
    is one (None); to `wait`, to take over what another process in this folder leaves. The results
    are None where another worker has them.
    """
    if resume is not False:
        expect_same_run(folder, config)
        if resume and not folder.holds_run:
            folder.require(output_folder.CONFIG)
        if folder.is_finished:
            console.print("This run is finished; these are its results.", highlight=False)
            return Results.read(folder)
    strategy = _start_strategy(config, console)
    writes = writes_files(strategy)
    pixels = load_source(config, replicas=strategy.num_replicas_in_sync)
    with outside_failures_explained(folder, strategy):
        expect_same_on_all_workers(strategy, config, pixels)
    model, input_range = float_model(config, pixels)
    parameters = sum(inner_layer(layer).count_params() for layer in model.layers)
    run = Run(
        config=config,
        source=pixels,
        input_range=input_range,
        folder=folder,
        strategy=strategy,
        console=console if writes else Console(quiet=True),
        writes=writes,
    )
    for line in about_data(pixels):
        run.say(line)
    if resume is False or not folder.holds_run:
        with reading_errors_explained(pixels):
            check_range(config, model, pixels, input_range, run.console)
    with (
        outside_failures_explained(folder, strategy),
        folder.held(wait=wait) if writes else contextlib.nullcontext(),
        reading_errors_explained(run.source, advice=_RESUME),
    ):
        if writes:
            _prepare_folder(run, start_over=resume is False)
        # The other workers read the folder that the first one has prepared.
        from_first_worker(strategy, [0])
        state = RunState.read(folder)
        state.expect_whole(config.stages.by_name())
        run.rows[:] = EpochMetrics.read(folder)
        with state.timed() if writes else contextlib.nullcontext():
            model = float_stage(run, state, model)
            if config.stages.quantized is not None:
                model = quantized_stage(run, state, model)
            results = conclude(run, state, model, parameters=parameters) if writes else None
            # A worker that ended before the first would count as crashed.
            from_first_worker(strategy, [0])
            return results


def _start_strategy(config: Config, console: Console) -> tf.distribute.Strategy:
    """Creates the strategy of a run, says what it waits for or lacks, and seeds what is drawn."""
    if config.training.deterministic_ops:
        tf.config.experimental.enable_op_determinism()
    # Dropout then draws from generators that every step can set.
    keras.backend.experimental.enable_tf_random_generator()
    if note := waiting_note(config.distribution):
        say(console, note)
    with ending_at_once() if note else contextlib.nullcontext():
        strategy = make_strategy(config.distribution)
    if note := strategy_note(config.distribution, strategy):
        say(console, note, style="yellow")
    keras.utils.set_random_seed(config.seed)
    return strategy


def _prepare_folder(run: Run, *, start_over: bool) -> None:
    if run.folder.holds_run and not start_over:
        run.say(f"Resuming the run in {run.folder.path}.")
        return
    run.folder.start()
    if start_over:
        run.folder.file(output_folder.UNFINISHED).unlink(missing_ok=True)
    environment = describe_environment(run.config.seed)
    environment["float_model"] = float_model_hash(run.config)
    run.folder.write_json(run_folder.ENVIRONMENT, environment)
    if run.source.class_names is not None:
        run.folder.write_text(output_folder.LABELS, label_text(run.source.class_names))
    run.folder.write_text(output_folder.PREPROCESSING, run.source.preprocessing.to_json())
    # The configuration comes last: a folder that has one holds a run.
    run.folder.write_text(output_folder.CONFIG, config_text(run.config))


# -- the stages --------------------------------------------------------------------------------


def float_stage(run: Run, state: RunState, start: keras.Model) -> keras.Model:
    """The float model: read where the stage is done, otherwise trained, or given, and saved."""
    if "float" in state.stages:
        return _load_stage(run, "float")
    if run.config.training.float_model is None:
        _, trained = train_stage(run, "float", start)
        start = _with_final_statistics(run, "float", trained)
    return _end_stage(run, state, "float", iter([(None, start)]))


def quantized_stage(run: Run, state: RunState, trained: keras.Model) -> keras.Model:
    """The quantized model: read where the stage is done, otherwise trained and saved."""
    if "quantized" in state.stages:
        return _load_stage(run, "quantized")
    config, quantized = run.config, quantized_start(run.config, trained)
    trains = config.stages.by_name()["quantized"].trains
    if config.calibration.num_images:
        run.say("quantized  calibrating")
        _calibrate(
            run,
            quantized,
            clipping_levels=config.calibration.clipping_levels,
            # A given model keeps its function, whether it is trained or not.
            keep_function=not trains or config.training.float_model is not None,
        )
    if config.calibration.reconstruction_steps:
        _reconstruct(run, quantized, trained)
    if not trains or run.keeps_best("quantized"):
        # The start, which may be kept, is measured as it would be saved.
        _with_snapped_biases(run, quantized)
    candidates = _candidates(run, quantized) if trains else iter([(None, quantized)])
    return _end_stage(run, state, "quantized", candidates)


def _candidates(run: Run, start: keras.Model) -> Iterator[Candidate]:
    """Yields the models that the quantized stage can end with, the best guess first."""
    calibration = run.config.calibration
    settle: Callable[[keras.Model], None] | None = None
    if calibration.num_images and calibration.final_statistics and run.keeps_best("quantized"):
        sample = _calibration_sample(run)

        def measure_again(model: keras.Model) -> None:
            # The end of the stage does the same. A model whose activations are non-finite is
            # measured as it is, and its metrics show it.
            with contextlib.suppress(ValueError):
                batches = fed_batches(sample, run.input_range.fed)
                estimate_statistics(model, batches, num_images=len(sample))

        settle = measure_again
    epoch, model = train_stage(run, "quantized", start, settle=settle)
    if epoch is None:
        yield None, _with_final_statistics(run, "quantized", model)
        return
    if epoch:
        yield epoch, _with_final_statistics(run, "quantized", training_copy(model))
        yield epoch, _with_snapped_biases(run, model)
    yield 0, start


def _end_stage(
    run: Run, state: RunState, name: str, candidates: Iterator[Candidate]
) -> keras.Model:
    """Saves the model that a stage ends with, and records its held-out metrics.

    It is the first candidate that is as good as the stage's best epoch; failing that, the best:
    statistics that are measured again, and snapped biases, can take some of the accuracy away.
    """
    if not run.writes:
        _, model = next(candidates)
        return model
    measured: list[tuple[keras.Model, dict[str, float]]] = []
    for epoch, model in candidates:  # the first is trained now
        if not measured:
            run.say(f"{name:9}  measuring held-out top-1")
        metrics = held_out_metrics(model, run.source, run.input_range)
        measured.append((model, metrics if epoch is None else {**metrics, "kept_epoch": epoch}))
        best = max((row.held_out_top1 or 0.0 for row in run.rows if row.stage == name), default=0.0)
        if epoch is None or metrics["top1"] >= best:
            break
    model, metrics = max(measured, key=lambda pair: pair[1]["top1"])  # the first of equal ones
    with run.folder.written(MODELS[name]) as temporary:
        model.save(temporary)
    state.finish(name, metrics)
    shutil.rmtree(run.folder.file(run_folder.CHECKPOINTS) / name, ignore_errors=True)
    kept_epoch, remark = metrics.get("kept_epoch"), ""
    if name == "float" and run.config.training.float_model is not None:
        remark = "; the float model may have been trained on these very pictures"
    elif kept_epoch == 0:
        remark = ": the model before training, because no epoch was better"
    elif kept_epoch is not None:
        remark = f": the weights of epoch {kept_epoch}, the best on these pictures"
    run.say(f"{name:9}  done: {run.held_out(metrics)}{remark}")
    return model


@value_errors_as_run_errors()
def _load_stage(run: Run, name: str) -> keras.Model:
    path = run.folder.file(MODELS[name])
    expected = f"expected the model of the {name} stage, which is done; {_RESTORE}"
    if not path.is_file():
        raise RunError(f"{path}: received no file, {expected}")
    try:
        return load_model(path, safe_mode=not run.config.training.trust_model)
    except UntrustedModelError:
        raise
    except ValueError as error:
        raise RunError(f"{error}; {expected}") from error


def _with_final_statistics(run: Run, name: str, model: keras.Model) -> keras.Model:
    """A trained model as it is saved; it is changed in place.

    The statistics are measured again where the configuration asks for it, and the biases of a
    quantized model are snapped, so that what is measured is what is shipped.
    """
    calibration = run.config.calibration
    if calibration.num_images and calibration.final_statistics:
        run.say(f"{name:9}  measuring statistics again")
        _calibrate(run, model, clipping_levels=False)
    return _with_snapped_biases(run, model) if name == "quantized" else model


def _with_snapped_biases(run: Run, model: keras.Model) -> keras.Model:
    """A quantized model with biases that an integer file holds; it is changed in place."""
    # A model without an integer form is saved as it is; the export then says what it lacks.
    with contextlib.suppress(ValueError):
        snap_biases(model, pack=run.config.packing)
    return model


def _calibrate(
    run: Run, model: keras.Model, *, clipping_levels: bool, keep_function: bool = False
) -> None:
    """Calibrates a model in place; of an ordinary float model, the statistics of normalization."""
    sample = _calibration_sample(run)
    images, count = fed_batches(sample, run.input_range.fed), len(sample)
    with value_errors_as_run_errors(), warnings.catch_warnings():
        if not keep_function:
            # Stale statistics are expected here: training comes next, or has just ended.
            warnings.simplefilter("ignore", StaleStatisticsWarning)
        if quantized_layers(model):
            calibrate(
                model,
                images,
                num_images=count,
                clipping_levels=clipping_levels,
                keep_function=keep_function,
            )
        else:
            estimate_statistics(model, images, num_images=count)


def _reconstruct(run: Run, model: keras.Model, float_model: keras.Model) -> None:
    """Fits a calibrated model in place, or leaves it as it is; prints the gain, or why not."""
    sample, steps = _calibration_sample(run), run.config.calibration.reconstruction_steps
    run.say(f"quantized  reconstructing, {steps} steps a block")
    unfinished = run.folder.file(output_folder.UNFINISHED)
    try:
        fitted = fit(
            model,
            float_model,
            fed_batches(sample, run.input_range.fed),
            num_images=len(sample),
            steps=steps,
            seed=run.config.seed,
            measure=lambda: held_out_metrics(
                _with_snapped_biases(run, model), run.source, run.input_range
            ),
            keep_better=run.keeps_best("quantized"),
            progress=run.writes,
            checkpoint=Checkpoint(unfinished, say=run.say) if run.writes else None,
        )
    except (RunError, ReadingError):  # about the images that it is measured on
        raise
    except ValueError as error:
        run.say(f"Note: calibrated only. {error}", style="yellow")
        return
    run.say(f"quantized  reconstructed {fitted.how}")
    run.say(f"quantized  {fitted.gained}")
    if run.writes:
        fitted.write(run.folder)


def _calibration_sample(run: Run) -> np.ndarray:
    """Pixels of the training set, drawn with the run's seed."""
    count = min(run.config.calibration.num_images, run.source.num_train)
    return run.source.training_sample(count, seed=run.config.seed)


# -- failures outside the program, as errors that say how to resume ----------------------------


@contextlib.contextmanager
def reading_errors_explained(source: ImageSource, *, advice: str = "") -> Iterator[None]:
    """Raises reading errors as a `RunError`, without TensorFlow's tracebacks around them."""
    try:
        yield
    except ReadingError as error:
        raise RunError(f"{error}{advice}") from None
    except tf.errors.OpError:
        if source.reading_error is None:
            raise
        raise RunError(f"{source.reading_error}{advice}") from None


# The errors of TensorFlow in a worker when another one has stopped answering.
_OF_WORKERS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)

_REFUSED = {
    *(errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOENT, errno.ENOSPC),
    *(errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE),
}


@contextlib.contextmanager
def outside_failures_explained(
    folder: RunFolder, strategy: tf.distribute.Strategy
) -> Iterator[None]:
    """Raises failures outside the program, such as a full disk, as a `RunError`."""
    try:
        yield
    except tf.errors.OpError as error:
        # TensorFlow says "PATH; REASON" of a folder, or of a file in it.
        path = re.escape(str(folder.path))
        lines = [line.strip() for line in error.message.splitlines() if line.strip()]
        aborted = [line for line in lines if line.startswith("Collective ops is aborted")]
        reason = next(iter([*aborted, *lines]), "no reason given")
        if re.search(rf"(?<![\w./-]){path}(/[^;\n]*)?; ", str(error)) is not None:
            raise _refused(folder, reason) from error
        is_of_workers = isinstance(error, _OF_WORKERS) or "Collective" in error.message
        if shard_of(strategy).workers > 1 and is_of_workers:
            raise RunError(
                f"distribution: another worker no longer answers ({reason}), expected all of them "
                "until the run ends; start the same command on all of them again: the run resumes "
                "behind its last finished epoch."
            ) from error
        raise
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise _refused(folder, error.strerror or str(error)) from error


def _refused(folder: RunFolder, reason: str) -> RunError:
    return RunError(
        f"run folder {folder.path}: can no longer be written to ({reason}), expected a writable "
        "one until the run ends; free some space, or fix its permissions.\n"
        "Then the same command resumes behind the last finished epoch."
    )
