"""From a quantized Keras model to a graph of integer operations."""
