"""Keras 3: quantized layers that train on any of its backends, and twins of models in tf_keras."""
