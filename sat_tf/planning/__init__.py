"""The plan of a quantization: what becomes of every layer, before anything is built.

`explain` puts it together: `decisions` gives bits and reasons, `preview` the quantized network
without its model, `deployment` its operators in the file with their bytes, and multiply-adds. The
result is a `plan` of `layer_plan`s, which shows itself as tables.
"""
