"""The plan of a quantization: the treatment of every layer, before anything is built."""
