"""Keras models read as a flat graph in which each call is a layer of a known kind."""
