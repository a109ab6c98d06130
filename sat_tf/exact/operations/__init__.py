"""The operations of a deployed graph, and its file.

An operation (`operation.Operation`) has its settings, its arithmetic in NumPy, bit for bit as the
kernels of LiteRT compute it, and how it is read and written. How a layer becomes one is said in
`sat_tf.export.lowering`.
"""
