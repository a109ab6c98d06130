"""The Keras callbacks that show and record the progress of a stage, in one list."""

import contextlib
from collections.abc import Iterator

import numpy as np
import tf_keras as keras
from rich.console import Console

from sat_tf.analysis.activations import ActivationProbe, clipping_levels
from sat_tf.training.callbacks.epoch_recorder import EpochRecorder
from sat_tf.training.callbacks.progress import ProgressBar
from sat_tf.training.callbacks.step_recorder import (
    StepCallback,
    StepRecorder,
    default_interval,
    recorded_steps,
)
from sat_tf.training.callbacks.tensorboard import TensorBoardSummaries, drop_events_after
from sat_tf.training.state.history import EpochMetrics
from sat_tf.training.state.run_folder import TENSORBOARD, RunFolder
from sat_tf.training.step.stage_plan import StagePlan


@contextlib.contextmanager
def recording(
    plan: StagePlan,
    model: keras.Model,
    folder: RunFolder,
    *,
    rows: list[EpochMetrics],
    sample: np.ndarray,
    console: Console,
    every: int | None = None,
) -> Iterator[list[StepCallback]]:
    """Callbacks for `fit` that record a stage and show its progress, for as long as it trains.

        with recording(plan, model, folder, rows=rows, sample=sample, console=console) as callbacks:
            fitted.fit(batches, callbacks=callbacks)

    They write metrics.csv, steps.csv and TensorBoard's events into the run folder. When a run
    resumes, rows and events after the step it resumes from are dropped first. Every worker has to
    enter it: what one reads of the model, all do.

    Args:
        plan: the steps of the stage, from where it starts or resumes.
        model: the Functional model that is trained, quantized or not; not a view of it.
        folder: of the run.
        rows: the rows of metrics.csv so far; the new ones are appended.
        sample: a few training images (n, rows, columns, channels), always the same ones, on which
            to measure what is clipped.
        console: where to show progress.
        every: how many steps lie between rows of steps.csv; None: about a thousand rows a stage.

    Raises:
        RunError: the folder's steps file cannot be read.
        ValueError: the model is not a graph of calls.
    """
    here = plan.step_of_run(plan.first_step)
    steps = recorded_steps(folder, here)
    drop_events_after(folder.file(TENSORBOARD), here)
    recorder = StepRecorder(
        plan,
        steps,
        folder,
        clipping_levels=clipping_levels(model),
        every=every or default_interval(plan.total_steps),
    )
    probe = ActivationProbe(model, sample)
    summaries = TensorBoardSummaries(
        plan, folder.file(TENSORBOARD), steps, model=model, probe=probe
    )
    progress = ProgressBar(plan, console=console)
    with summaries, progress:
        try:
            yield [EpochRecorder(plan, rows, folder), recorder, summaries, progress]
        finally:
            recorder.flush()
