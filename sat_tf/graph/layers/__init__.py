"""The registry of layer kinds, a file for each family of them; `graph/layer_kinds.py` joins it.

A layer kind is one row: a class of layers, and the `kind.LayerKind` with its role, its kernels,
what it computes, which operators stand for it in a file, which settings it may have and its
counterpart in Keras 3. Everything else in the package asks the row, so that a new kind on existing
operations is one row here; `tests/graph/test_layer_kinds.py` asks every row all of it.
"""
