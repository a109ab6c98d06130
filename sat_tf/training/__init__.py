"""Training runs: a YAML file in, a run folder out.

`config` and `run_folder` read no TensorFlow, so that mistakes in a configuration are answered at
once; `run` is where the work starts.
"""
