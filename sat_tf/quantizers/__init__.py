"""Quantizers, one file a method, and their table."""
