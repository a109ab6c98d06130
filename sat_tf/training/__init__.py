"""Training runs: a YAML file in, a run folder out; `loop.runner` is where the work starts."""
