"""How commands are told to quantize, the pictures they take, and a file without a run."""
