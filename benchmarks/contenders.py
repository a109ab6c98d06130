"""The models that are measured beside each other, ready to step on a batch."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from absl import app

_NUM_CLASSES = 1000


def all_contenders() -> dict[str, Callable[[Any], Any]]:
    """Each takes the float model and gives the one to train."""
    import peer_tfmot

    import sat_tf

    policies = {
        "sat-tf clamp only": sat_tf.BitPolicy(weight_bits=None, activation_bits=None),
        "sat-tf w4a4 mobile": sat_tf.BitPolicy.mobile(4),
        "sat-tf w4a4 paper": sat_tf.BitPolicy.paper(4),
        "sat-tf w4a4 L1": sat_tf.BitPolicy.mobile(4, weight_quantizer="l1"),
        "sat-tf w4a4 LSQ": sat_tf.BitPolicy.mobile(
            4, weight_quantizer="lsq", activation_quantizer="lsq"
        ),
        "sat-tf w4a4 k-means": sat_tf.BitPolicy.mobile(4, weight_quantizer="kmeans"),
        "sat-tf w4a4 LQ-Nets": sat_tf.BitPolicy.mobile(4, weight_quantizer="lq_nets"),
    }
    made = {
        "float": lambda model: model,
        **{
            name: lambda model, policy=policy: sat_tf.quantize_model(model, policy)
            for name, policy in policies.items()
        },
        "sat-tf w4a4 mobile calibrated": lambda model: _with_two_ends(
            sat_tf.quantize_model(model, policies["sat-tf w4a4 mobile"])
        ),
        "TFMOT 8-bit": peer_tfmot.eight_bits,
        "TFMOT 4-bit experimental": lambda model: peer_tfmot.n_bits(model, 4),
    }
    if importlib.util.find_spec("qkeras"):
        import peer_qkeras

        settings = {"bits": 4, "integer_bits": "2", "alpha": "auto", "ternary": False}
        no_images: Any = None  # integer bits are given, not measured
        made["QKeras w4a4"] = lambda model: peer_qkeras.quantized(model, no_images, **settings)
    return made


def _with_two_ends(model: Any) -> Any:
    """Gives streams ranges that are not symmetric, as a calibration does, which would take memory.

    Symmetric ones have a faster kernel, and pass nothing back to their other end.
    """
    from sat_tf.qat.wrapper import quantized_layers
    from sat_tf.quantizers.values import SKEW

    for layer in quantized_layers(model):
        if SKEW in layer.output_variables:
            layer.output_variables[SKEW].assign(0.25)
    return model


def with_float(names: Sequence[str] | None) -> list[str]:
    """Names of contenders, float first; by default all.

    Raises:
        app.UsageError: a name that is none.
    """
    known = list(all_contenders())
    chosen = list(dict.fromkeys(["float", *(names or known)]))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise app.UsageError(f"--contenders: received {unknown}, expected some of {known}.")
    return chosen


class Steps:
    """A contender's model, compiled, and a batch to step on.

    Args:
        contender: its name.
        model_name: name of the float model.
        image_size: rows and columns of the images.
        batch_size: images a step.
    """

    def __init__(self, contender: str, model_name: str, image_size: int, batch_size: int) -> None:
        import numpy as np
        import tensorflow as tf
        import tf_keras as keras

        from sat_tf.training.models import build

        keras.utils.set_random_seed(0)
        rng = np.random.default_rng(0)
        shape = (batch_size, image_size, image_size, 3)
        images = tf.constant(rng.integers(0, 256, shape), tf.float32)
        labels = tf.constant(rng.integers(0, _NUM_CLASSES, batch_size))
        float_model = build(model_name, image_size=image_size, num_classes=_NUM_CLASSES)
        self.model = all_contenders()[contender](float_model)
        self.model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        self.has_constant_weights = contender.startswith("sat-tf")
        self._batches = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())

    # Fetching the loss waits for the step.
    def train(self) -> None:
        """A training step."""
        float(self.model.make_train_function()(self._batches)["loss"])

    def evaluate(self) -> None:
        """An evaluation step."""
        float(self.model.make_test_function()(self._batches)["loss"])
