"""From a quantized Keras model to an integer TFLite file, with proof.

The stages, in order: trace (with the folding of BatchNormalization), upscale, floor_steps,
snap_biases; then simulate, write and verify. `to_keras` gives the same graph to TensorFlow's own
converter.
"""

from sat_tf.export.converter import to_keras

__all__ = ["to_keras"]
