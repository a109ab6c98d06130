"""Workers that train one model together are to do the same."""

import json

import tensorflow as tf

from sat_tf.data.source import ImageSource
from sat_tf.messages import RunError, list_problems
from sat_tf.training.config.config import Config
from sat_tf.training.state.run_state import differences, float_model_hash
from sat_tf.training.step.distribution import from_all_workers
from sat_tf.version import __version__

# Settings that name files, which may be elsewhere on another machine.
_OF_A_MACHINE = {
    *("data.options.data_dir", "data.options.cache_dir", "training.float_model"),
    *("recipes.distillation.teacher", "training.trust_model"),
}


def expect_same_on_all_workers(
    strategy: tf.distribute.Strategy, config: Config, source: ImageSource
) -> None:
    """Raises the same error on all workers unless they are to do the same; all call it together.

    Args:
        strategy: that they train under.
        config: of this worker.
        source: its data set.

    Raises:
        RunError: lists every setting, version and size of the data that differs.
    """
    own = {
        **config.model_dump(),
        "the float model": float_model_hash(config),
        "images to train on": source.num_train,
        "held-out images": source.num_test,
        "classes": source.num_classes,
        "sat-tf": __version__,
        "TensorFlow": tf.__version__,
    }
    # As text, so that every worker sees the same values.
    first, *others = map(json.loads, from_all_workers(strategy, json.dumps(own, default=str)))
    problems = [
        f"{key}: {one!r} in worker 0, {other!r} in worker {number}"
        for number, found in enumerate(others, start=1)
        for key, one, other in differences(first, found)
        if key not in _OF_A_MACHINE
    ]
    if problems:
        raise RunError(
            list_problems("workers of one run that are not to do the same", problems)
            + "\nStart the same command with the same settings on all of them."
        )
