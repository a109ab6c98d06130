"""From a quantized Keras model to an integer TFLite file, with proof.

The stages, in order: trace (with the folding of BatchNormalization), upscale, settle_constants,
floor_steps, snap_biases; then simulate, write and verify. `to_keras` gives the same graph to
TensorFlow's own converter; `snap_biases` moves a trained model's biases to those of its file;
`deployed_model` is that file in Keras, to be evaluated and trained.
"""

from sat_tf.export.converter import to_keras
from sat_tf.export.deployed import deployed_model
from sat_tf.export.snapping import snap_biases

__all__ = ["deployed_model", "snap_biases", "to_keras"]
