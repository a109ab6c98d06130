"""The operations of a deployed graph, each told whole in one file.

An operation describes all of itself (`operation.Operation`): its settings as a frozen dataclass;
its arithmetic in NumPy, bit for bit as the kernels of LiteRT compute it; how it is written into a
file and read back; the same arithmetic in TensorFlow, for the deployed model, from which its real
values for TensorFlow's converter follow; its names. One that layers lower to says how, too: it is a
`builder.Draft` until the grid of its result is known. The simulator, the writer, the reader, the
deployed model, the converter route and `explain` ask it, and know none by its class.

To add one:

1. Write a file here with a class of `operation.Operation`, and its methods.
2. Add its class to `table.OPERATIONS`.

Which layer becomes which draft is in `sat_tf.export.lowering`. The tests of the table,
`tests/export/operations/test_table.py`, ask every operation everything, and add one of their own.
"""
