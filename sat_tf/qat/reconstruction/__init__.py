"""Quantized models fitted to their float models, block by block, without labels."""
