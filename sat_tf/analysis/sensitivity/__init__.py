"""The sensitivity of a network to each of its layers being quantized."""
