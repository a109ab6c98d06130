"""The rounding of LiteRT's kernels by runtime and processor: pure functions of integers and scales.

`xnnpack` and `fixed_point` have the rules, `kernel_sets` has the table of kernels that round alike;
a graph names one of its rows. Nothing here knows tensors or files.
"""
