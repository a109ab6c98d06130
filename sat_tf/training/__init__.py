"""Training runs: a YAML file in, a run folder out.

Each folder imports only those to its left: `config`, `step`, `state`, `recipes`, `report`,
`loop`. `config` and `state.run_folder` do not import TensorFlow, so that
mistakes in a configuration are reported at once; `loop.runner` is where the work starts.
"""
