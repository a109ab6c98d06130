"""Keras callbacks for `fit`."""
