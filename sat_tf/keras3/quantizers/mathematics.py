"""Which functions compute DoReFa weights and clipped activations, by the backend.

On TensorFlow those of `sat_tf.core`, which the twin in tf_keras computes with: TensorFlow runs
operations one by one, and their fused kernels and gradients take fewer passes over memory. XLA
fuses those in `keras.ops` by itself, and PyTorch has no such kernels.
"""

import functools
from types import ModuleType

import keras


@functools.cache
def pact() -> ModuleType:
    """`sat_tf.core.pact`, or `sat_tf.keras3.core.pact`."""
    if keras.backend.backend() == "tensorflow":
        from sat_tf.core import pact as of_tensorflow

        return of_tensorflow
    from sat_tf.keras3.core import pact as of_keras

    return of_keras


@functools.cache
def dorefa() -> ModuleType:
    """`sat_tf.core.dorefa`, or `sat_tf.keras3.core.dorefa`."""
    if keras.backend.backend() == "tensorflow":
        from sat_tf.core import dorefa as of_tensorflow

        return of_tensorflow
    from sat_tf.keras3.core import dorefa as of_keras

    return of_keras
