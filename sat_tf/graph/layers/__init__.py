"""The registry of layer kinds, a file for each family of them; `graph/layer_kinds.py` joins it.

A layer kind is one row: a class of layers, and the `kind.LayerKind` that says the part it plays,
where its kernels are, what it makes of values, which operators stand for it in a file, what its
settings may be and what Keras 3 has for it. Everything else in the package asks the row, so that a
new kind on operations that exist is one row here; `tests/graph/test_layer_kinds.py` puts every row
through all of them.
"""
