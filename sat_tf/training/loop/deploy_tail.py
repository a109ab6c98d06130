"""Training on the integers of the file, with plain Keras: what a run does in its last stage."""

import math
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf import arguments
from sat_tf.arguments import Rule
from sat_tf.export.deployed import DeployedModel, deployed_model
from sat_tf.training.step.learner import accuracy_metrics
from sat_tf.training.step.schedule import WarmupCosine


def deploy_tail(
    quantized: keras.Model,
    dataset: tf.data.Dataset,
    *,
    epochs: int = 1,
    learning_rate: float = 1e-3,
    momentum: float = 0.9,
    float_head: bool = False,
    pack: str = "auto",
    validation_data: Any = None,
    callbacks: Iterable[keras.callbacks.Callback] = (),
    verbose: Any = 0,
) -> DeployedModel:
    """Trains a quantized classifier, in place, on the integers that its file will hold.

    BatchNormalization is frozen and folded, biases are integers, and kernels round as on a phone,
    so that the model returned and the file it is exported to agree on every code of every tensor.
    SGD with Nesterov momentum, the learning rate going to 0 on half a cosine.

    Args:
        quantized: a model quantized by sat-tf and trained, with logits as its output; its variables
            are trained further.
        dataset: batches of images, as `quantized` takes them, and integer labels.
        epochs: passes over it; few are enough.
        learning_rate: where it starts: well below that of the training before.
        momentum: from 0 to below 1.
        float_head: as in `sat_tf.export_tflite`.
        pack: as in `deployed_model`.
        validation_data: see `keras.Model.fit`.
        callbacks: see `keras.Model.fit`.
        verbose: see `keras.Model.fit`.

    Returns:
        The deployed model, to be evaluated, verified and exported; its `quantized` is the one that
        was given, and the one to save.

    Raises:
        ValueError: an argument is invalid, the data set is empty or of unknown length, or the model
            has no integer form; lists every problem with its fix.
    """
    steps_per_epoch = int(dataset.cardinality()) if isinstance(dataset, tf.data.Dataset) else 0
    arguments.check(
        "deploy_tail",
        [
            Rule(
                "dataset",
                dataset,
                steps_per_epoch > 0,
                "a tf.data.Dataset of known length, which the learning rate follows",
                "batch it, and give it tf.data.experimental.assert_cardinality where it is unknown",
            ),
            Rule(
                "epochs",
                epochs,
                arguments.is_integer(epochs, lowest=1),
                "an integer from 1",
                "pass 1",
            ),
            Rule(
                "learning_rate",
                learning_rate,
                arguments.is_between(learning_rate, 0, math.inf),
                "a positive number",
                "pass a hundredth of the training's own",
            ),
            Rule(
                "momentum",
                momentum,
                momentum == 0 or arguments.is_between(momentum, 0, 1),
                "a number from 0 to below 1",
                "pass 0.9",
            ),
        ],
    )
    deployed = deployed_model(quantized, float_head=float_head, pack=pack)
    schedule = WarmupCosine(
        first_learning_rate=learning_rate,
        peak_learning_rate=learning_rate,
        warmup_steps=0,
        total_steps=epochs * steps_per_epoch,
    )
    with deployed.distribute_strategy.scope():
        deployed.compile(
            optimizer=keras.optimizers.SGD(schedule, momentum=momentum, nesterov=momentum > 0),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=accuracy_metrics(quantized),
        )
    deployed.fit(
        dataset,
        epochs=epochs,
        validation_data=validation_data,
        callbacks=list(callbacks),
        verbose=verbose,
    )
    return deployed
