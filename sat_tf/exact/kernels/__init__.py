"""The rounding of LiteRT's kernels, by runtime and processor: functions of integers and scales.

`xnnpack` and `fixed_point` have the rules, as pure functions; `kernel_sets` has the table of
kernels that round alike, and a graph names one row. Nothing here knows tensors or files.
"""
