"""Quantizers, their protocol and their table."""
