"""The operations of a deployed graph, and its file.

An operation (`operation.Operation`) has its settings, its arithmetic in NumPy, bit for bit as the
kernels of LiteRT compute it, and how it is read and written. Layers become drafts
(`builder.Draft`), which become operations once the grid of their result is known.
"""
