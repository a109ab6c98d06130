"""Quantizers of Keras 3 layers, on any backend: those of `sat_tf.quantizers`, by the same names."""
