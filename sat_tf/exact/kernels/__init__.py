"""How the kernels of LiteRT round, by runtime and processor: pure functions of integers and scales.

`xnnpack` and `fixed_point` have the rules, `kernel_sets` the table of kernels that round alike, of
which a graph names one. Nothing here knows tensors or files.
"""
