"""The lowering of a quantized Keras model to a graph of integer operations."""
