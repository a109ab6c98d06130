"""The version of sat-tf, readable without importing TensorFlow."""

__version__ = "0.1.0"
