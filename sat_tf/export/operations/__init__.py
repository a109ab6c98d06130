"""The operations of a deployed graph.

An operation (`operation.Operation`) has its settings, its arithmetic in NumPy, bit for bit as the
kernels of LiteRT compute it, and how it is read and written. Layers become drafts
(`builder.Draft`), which become operations once the grid of their result is known. To add one:
a class in `graph_file.OPERATIONS`, or a row of `movements.MOVES` where values only move; where
layers become it, a row of `ON_REALS` in `sat_tf.export.converter_route`, too.
"""
