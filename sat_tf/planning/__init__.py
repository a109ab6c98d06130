"""The plan of a quantization: what becomes of every layer, before anything is built."""
