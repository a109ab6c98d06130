"""The registry of layer kinds, a file for each family of them; `graph/layer_kinds.py` joins it.

A new kind of layers on existing operations is one row here: everything else asks the row.
"""
