"""Calls of TensorFlow in Keras models, and the layers that compute the same, by family."""
