"""The operations of a deployed graph, each told whole in one file.

An operation describes all of itself (`operation.Operation`): its settings as a frozen dataclass;
its arithmetic in NumPy, bit for bit as the kernels of LiteRT compute it; how it is written into a
file and read back; its names. One that layers lower to says how, too: it is a `builder.Draft` until
the grid of its result is known. The simulator, the writer, the reader and `explain` ask it, and
know none by its class; `converter_route` alone has a row for each that layers become.

To add one:

1. Write a file here with a class of `operation.Operation`, and its methods.
2. Add its class to `table.OPERATIONS`.
3. Where layers become it, add its row to `ON_REALS` in `sat_tf.export.converter_route`.

Which layer becomes which draft is in `sat_tf.export.lowering`. The tests of the table,
`tests/export/operations/test_table.py`, ask every operation everything, and add one of their own.
"""
