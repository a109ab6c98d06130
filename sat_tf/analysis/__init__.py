"""Measurements of a model: on its graph, its weights, and a few images."""
