"""Keras callbacks of a run."""
