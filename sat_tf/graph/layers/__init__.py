"""The registry of layer kinds, a file for each family of them; `graph/layer_kinds.py` joins it."""
