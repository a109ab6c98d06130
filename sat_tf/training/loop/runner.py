"""A whole run, in order: configuration, data, the stages, the file with its certificate."""

import contextlib
import errno
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf import output_folder
from sat_tf.exact.certificate.proof import read_subject
from sat_tf.exact.certificate.proof_images import ImagesFrom
from sat_tf.exact.evaluate import evaluate_tflite
from sat_tf.exact.tflite.metadata import label_text
from sat_tf.export.lowering.pipeline import snap_biases
from sat_tf.files import remove_folder
from sat_tf.graph.network import Network
from sat_tf.interruption import ending_at_once
from sat_tf.loading.load import load_model
from sat_tf.loading.trust import UntrustedModelError
from sat_tf.messages import ReadingError, RunError, say, value_errors_as_run_errors
from sat_tf.messages.tables import marked_text
from sat_tf.output_folder import TFLITE_MODEL
from sat_tf.qat.calibrate import StaleStatisticsWarning, calibrate, estimate_statistics
from sat_tf.qat.inputs import takes_pixels
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import known_weights
from sat_tf.qat.reconstruction.fit import Checkpoint
from sat_tf.qat.reconstruction.fitted import Fitted, fit
from sat_tf.qat.wrapper import quantized_layers
from sat_tf.report import report
from sat_tf.report.curves import epochs_table, learning_curves
from sat_tf.report.layer_table import SAMPLE, layer_rows
from sat_tf.report.report import write_file
from sat_tf.report.results import Results, of_certificate
from sat_tf.training import distribution, run_folder
from sat_tf.training.config import Config, config_text
from sat_tf.training.data.source import NO_LABEL, ImageSource
from sat_tf.training.distribution import shard_of
from sat_tf.training.learner import training_copy
from sat_tf.training.loop import start
from sat_tf.training.loop.stage import Run, held_out_metrics, train_stage
from sat_tf.training.run_folder import EpochMetrics, RunFolder, RunState

_BATCH_SIZE = 64
# The file of a run is measured on all held-out images if they are no more, which takes a minute.
_MOST_MEASURED = 10_000


def write_tflite(run: Run) -> None:
    """Writes the TFLite file and its certificate, and measures the file on held-out images."""
    folder, source, config = run.folder, run.source, run.config.export
    quantized, path = run.models["quantized"], folder.file(TFLITE_MODEL)
    pixels, labels = source.held_out_sample(config.verify_images)
    run.say(f"file       exporting, and verifying on {len(pixels):,} held-out images")
    is_of_pixels = takes_pixels(Network(quantized))
    try:
        report, certificate = write_file(
            folder,
            quantized,
            (pixels if is_of_pixels else pixels.astype(np.float32), labels),
            images_from=ImagesFrom.held_out(source.name, config.verify_images, source.decoder),
            float_model=run.models["float"],
            progress=True,
            float_head=config.float_head,
            pack=config.pack,
            target=run.config.policy.processor.name,
            softmax=config.softmax,
            output_type=config.output_type,
            labels=source.class_names,
            preprocessing=source.preprocessing if is_of_pixels else None,
        )
    except ValueError as error:
        raise RunError(f"{error}\nThe trained models are in {folder.path}.") from error
    for note in certificate.trained_notes + certificate.float_notes:
        say(run.console, marked_text(note))
    for warning in report.warnings:
        run.say(f"Note: {warning}")
    for statement in report.on_target:
        run.say(statement.words)
    run.of_file.update(of_certificate(certificate))
    num_held_out = run.num_held_out
    if certificate.num_images >= num_held_out or num_held_out > _MOST_MEASURED:
        return
    run.say(f"file       measuring its top-1 on all {num_held_out:,} held-out images")
    dtype = read_subject(path).graph.images[0].type
    batches = source.held_out_batches(batch_size=_BATCH_SIZE)

    def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for pixels, labels in batches.as_numpy_iterator():
            pixels, labels = pixels[labels != NO_LABEL], labels[labels != NO_LABEL]
            yield pixels.astype(dtype), labels

    tops = (1, 5) if source.num_classes > 5 else (1,)
    measured = evaluate_tflite(path, examples(), top=tops, progress=True)
    shares = {"tflite_top1": measured.top[1], "tflite_top5": measured.top.get(5)}
    run.of_file.update(shares, tflite_images=measured.num_images)


def measure_layers(run: Run) -> None:
    """Writes the table of the quantized model's layers."""
    run.say("report     measuring each layer")
    sample = run.source.training_sample(SAMPLE, seed=run.config.seed)
    rows = layer_rows(run.models["quantized"], run.input_range.fed(sample))
    report.write_layers(run.folder, rows)


def write_results(run: Run) -> None:
    """Writes the results of a run."""
    metrics, stage = run.state.stages, run.config.stages.quantized
    entries: dict[str, Any] = {
        f"{name}_{share}": metrics[name].get(share)
        for name in metrics
        for share in ("top1", "top5")
    }
    for row in run.rows:
        if row.epoch == 0:  # only the start of the quantized stage is measured
            entries |= {"start_top1": row.held_out_top1, "start_top5": row.held_out_top5}
    entries["kept_epoch"] = metrics.get("quantized", {}).get("kept_epoch")
    results = Results(
        held_out_images=run.num_held_out,
        parameters=sum(inner_layer(layer).count_params() for layer in run.models["float"].layers),
        given_float_model=run.config.training.float_model is not None,
        learning_rate=stage.peak_learning_rate if stage is not None and stage.trains else None,
        reconstruction=Fitted.read(run.folder),
        **entries,
        **run.of_file,
        seconds=run.state.seconds_so_far(),
    )
    run.folder.write_json(output_folder.RESULTS, results.to_dict())


def write_report(folder: RunFolder, config: Config) -> None:
    """Writes report.html from the files of a run."""
    epochs, recipes = EpochMetrics.read(folder), config.recipes
    # These are given to a model in training besides the labels.
    of_recipes = {"the teacher": recipes.distillation, "smoothed labels": recipes.label_smoothing}
    targets = " and ".join(words for words, recipe in of_recipes.items() if recipe is not None)
    report.write_report(
        folder,
        name=config.name,
        is_run=folder.holds_run,
        weights_by=_weights(config.policy),
        curves=learning_curves(epochs, run_folder.EPOCHS, targets=targets) if epochs else [],
        num_epochs=len(epochs),
        epochs=epochs_table(epochs, run_folder.EPOCHS),
        environment=folder.environment,
        config=folder.read_text(output_folder.CONFIG),
    )


def _weights(policy: BitPolicy) -> str:
    """Names the quantizer of the weights of inner layers, and the reason for it."""
    name = known_weights(policy.to_dict())
    if policy.weight_quantizer is not None:
        return name
    is_best = name == known_weights({"weight_bits": policy.weight_bits})
    best = f", and it is the best known at {policy.weight_bits} bits" if is_best else ""
    return f"{name}: the policy names none{best}"


# -- a run -----------------------------------------------------------------------------------------


_RESUME = "\nOnce the files can be read, the same command resumes the run."


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
        run_folder.expect_same_run(folder, config)
        if resume and not folder.holds_run:
            folder.require(output_folder.CONFIG)
        if folder.is_finished:
            console.print("This run is finished; these are its results.", highlight=False)
            return Results.read(folder)
    strategy = _start_strategy(config, console)
    writes = distribution.writes_files(strategy)
    pixels = start.load_source(config, replicas=strategy.num_replicas_in_sync)
    with outside_failures_explained(folder, strategy):
        start.expect_same_on_all_workers(strategy, config, pixels)
    model, input_range = start.float_model(config, pixels)
    console = console if writes else Console(quiet=True)
    for line in start.about_data(pixels):
        say(console, line)
    if resume is False or not folder.holds_run:
        with reading_errors_explained(pixels):
            start.check_range(config, model, pixels, input_range, console)
    with (
        outside_failures_explained(folder, strategy),
        folder.held(wait=wait) if writes else contextlib.nullcontext(),
        reading_errors_explained(pixels, advice=_RESUME),
    ):
        if writes and folder.holds_run and resume is not False:
            say(console, f"Resuming the run in {folder.path}.")
        elif writes:
            folder.start()
            if resume is False:
                folder.file(output_folder.UNFINISHED).unlink(missing_ok=True)
            environment = start.describe_environment(config.seed)
            environment["float_model"] = run_folder.float_model_hash(config)
            folder.write_json(run_folder.ENVIRONMENT, environment)
            if pixels.class_names is not None:
                folder.write_text(output_folder.LABELS, label_text(pixels.class_names))
            folder.write_text(output_folder.PREPROCESSING, pixels.preprocessing.to_json())
            # The configuration comes last: a folder that has one holds a run.
            folder.write_text(output_folder.CONFIG, config_text(config))
        # The other workers read the folder that the first one has prepared.
        distribution.from_first_worker(strategy, [0])
        run = Run(
            config=config,
            source=pixels,
            input_range=input_range,
            folder=folder,
            strategy=strategy,
            console=console,
            writes=writes,
            state=RunState.read(folder),
            rows=EpochMetrics.read(folder),
            models={"float": model},
        )
        run.state.expect_whole(config.stages.by_name())
        with run.state.timed() if writes else contextlib.nullcontext():
            do_stages(run)
            # A worker that ended before the first would count as crashed.
            distribution.from_first_worker(strategy, [0])
        return Results.read(folder) if writes else None


def _start_strategy(config: Config, console: Console) -> tf.distribute.Strategy:
    """Creates the strategy of a run, says what it waits for or lacks, and seeds what is drawn."""
    if config.training.deterministic_ops:
        tf.config.experimental.enable_op_determinism()
    # Dropout then draws from generators that every step can set.
    keras.backend.experimental.enable_tf_random_generator()
    if note := distribution.waiting_note(config.distribution):
        say(console, note)
    with ending_at_once() if note else contextlib.nullcontext():
        strategy = distribution.make_strategy(config.distribution)
    if note := distribution.strategy_note(config.distribution, strategy):
        say(console, note, style="yellow")
    keras.utils.set_random_seed(config.seed)
    return strategy


# -- the stages --------------------------------------------------------------------------------


def quantize(run: Run) -> None:
    """Quantizes the float model, and calibrates it."""
    config, calibration = run.config, run.config.calibration
    model = run.models["quantized"] = start.quantized_start(config, run.models["float"])
    if not calibration.num_images:
        return
    run.say("quantized  calibrating")
    # A given model keeps its function, whether it is trained or not.
    keep_function = not run.trains("quantized") or config.training.float_model is not None
    sample = run.calibration_images()
    with value_errors_as_run_errors(), warnings.catch_warnings():
        if not keep_function:
            # Stale statistics are expected here: training comes next.
            warnings.simplefilter("ignore", StaleStatisticsWarning)
        calibrate(
            model,
            **sample,
            clipping_levels=calibration.clipping_levels,
            keep_function=keep_function,
        )


def reconstruct(run: Run) -> None:
    """Fits the calibrated model, or leaves it as it is; prints the gain, or why not."""
    model, steps = run.models["quantized"], run.config.calibration.reconstruction_steps
    if not steps:
        return
    sample = run.calibration_images()
    run.say(f"quantized  reconstructing, {steps} steps a block")

    def measure() -> dict[str, float]:
        _snap_biases(run, model)
        return held_out_metrics(model, run.source, run.input_range)

    try:
        fitted = fit(
            model,
            run.models["float"],
            **sample,
            steps=steps,
            seed=run.config.seed,
            measure=measure,
            keep_better=run.keeps_best("quantized"),
            progress=run.writes,
            checkpoint=Checkpoint(run.folder.file(output_folder.UNFINISHED), say=run.say)
            if run.writes
            else None,
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


def train_and_save(run: Run, name: str) -> None:
    """Trains the model of a stage, saves what it ends with, and records its held-out metrics.

    That is the first candidate that is as good as the stage's best epoch; failing that, the best:
    statistics that are measured again, and snapped biases, can take some of the accuracy away.
    """
    candidates = _candidates(run, name)
    if not run.writes:
        _, run.models[name] = next(candidates)
        return
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
    with run.folder.written(run_folder.MODELS[name]) as temporary:
        model.save(temporary)
    run.models[name] = model
    run.state.finish(name, metrics)
    remove_folder(run.folder.file(run_folder.CHECKPOINTS) / name)
    kept_epoch, remark = metrics.get("kept_epoch"), ""
    if name == "float" and run.config.training.float_model is not None:
        remark = "; the float model may have been trained on these very pictures"
    elif kept_epoch == 0:
        remark = ": the model before training, because no epoch was better"
    elif kept_epoch is not None:
        remark = f": the weights of epoch {kept_epoch}, the best on these pictures"
    run.say(f"{name:9}  done: held-out top-1 {100 * metrics['top1']:.2f} %{remark}")


def _candidates(run: Run, name: str) -> Iterator[tuple[int | None, keras.Model]]:
    """Yields the models that a stage can end with, as `train_stage` does, the best guess first.

    Statistics are measured again on trained weights, so that what is measured is shipped.
    """
    start, trains = run.models[name], run.trains(name)
    if name == "quantized" and (not trains or run.keeps_best(name)):
        # The start, which may be kept, is measured as it would be saved.
        _snap_biases(run, start)
    if not trains:
        yield None, start
        return
    epoch, model = train_stage(run, name, start)
    if epoch != 0:
        final = training_copy(model) if epoch else model
        if run.measures_again:
            run.say(f"{name:9}  measuring statistics again")
            sample = run.calibration_images()
            with value_errors_as_run_errors(), warnings.catch_warnings():
                # Stale statistics are expected here: training has just ended.
                warnings.simplefilter("ignore", StaleStatisticsWarning)
                if quantized_layers(final):
                    calibrate(final, **sample, clipping_levels=False)
                else:
                    estimate_statistics(final, **sample)
        if name == "quantized":
            _snap_biases(run, final)
        yield epoch, final
    if epoch:
        _snap_biases(run, model)
        yield epoch, model
    if epoch is not None:
        yield 0, start


def _snap_biases(run: Run, model: keras.Model) -> None:
    """Gives a quantized model biases that an integer file holds."""
    # A model without an integer form is saved as it is; the export then says what it lacks.
    with contextlib.suppress(ValueError):
        snap_biases(model, pack=run.config.packing)


@value_errors_as_run_errors()
def _load_stage(run: Run, name: str) -> keras.Model:
    path = run.folder.file(run_folder.MODELS[name])
    expected = (
        f"expected the model of the {name} stage, which is done; put it back, start over with "
        "--no-resume, or remove the folder."
    )
    if not path.is_file():
        raise RunError(f"{path}: received no file, {expected}")
    try:
        return load_model(path, safe_mode=not run.config.training.trust_model)
    except UntrustedModelError:
        raise
    except ValueError as error:
        raise RunError(f"{error}; {expected}") from error


# The stages of a run: the name that the state gets when the last one of it is done, what it leaves
# in the folder, and what does it. All workers train; the first one alone does the rest.
STAGES: tuple[tuple[str, tuple[str, ...], Callable[[Run], None]], ...] = (
    ("float", (output_folder.FLOAT_MODEL,), lambda run: train_and_save(run, "float")),
    ("quantized", (), quantize),
    ("quantized", (output_folder.RECONSTRUCTION,), reconstruct),
    ("quantized", (output_folder.QUANTIZED_MODEL,), lambda run: train_and_save(run, "quantized")),
    ("file", (output_folder.TFLITE_MODEL, output_folder.CERTIFICATE), write_tflite),
    ("layers", (output_folder.LAYERS,), measure_layers),
    ("results", (output_folder.RESULTS,), write_results),
    ("report", (output_folder.REPORT,), lambda run: write_report(run.folder, run.config)),
)


def do_stages(run: Run) -> None:
    """Does the stages of a run in order, but for those that are done."""
    done = run_folder.MODELS.keys() & run.state.stages.keys()
    run.models.update({name: _load_stage(run, name) for name in done})
    others = {"quantized", "file", "layers"} if run.config.stages.quantized is None else set()
    for name, files, work in STAGES:
        if name in done:
            if left := [file for file in files if run.folder.file(file).exists()]:
                run.say(f"{name:9}  done before: {', '.join(left)}")
        elif name not in others and (run.writes or name in run_folder.MODELS):
            work(run)
    if run.writes:
        remove_folder(run.folder.file(run_folder.CHECKPOINTS))
        run.folder.file(output_folder.UNFINISHED).unlink(missing_ok=True)


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
                "after its last finished epoch."
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
        "Then the same command resumes after the last finished epoch."
    )
