"""TensorFlow's converter: for layers that are left float, and for whole models."""
