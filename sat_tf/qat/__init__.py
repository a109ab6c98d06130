"""Quantization-aware training: what is quantized, how, and the TFMOT scheme that does it."""
