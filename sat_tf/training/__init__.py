"""Training runs: a YAML file in, a run folder out; `loop.runner` is where the work starts.

`config` and `run_folder` do not import TensorFlow, so that mistakes in a configuration are reported
at once.
"""
