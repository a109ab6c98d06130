"""Bits for each layer: the least estimated loss within a budget, proven."""
