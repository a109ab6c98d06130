"""Turns a quantized Keras model into a graph of integer operations."""
