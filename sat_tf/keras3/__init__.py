"""Keras 3: quantized layers that train on any of its backends, and the way to tf_keras and back."""
