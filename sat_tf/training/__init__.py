"""Training runs: a YAML file in, a run folder out.

Each folder imports only those to its left: `config`, `step`, `state`, `recipes`, `report`,
`loop`. `config`, `state.run_folder` and `interruption` do not import TensorFlow, so that
mistakes in a configuration are reported at once; `loop.runner` is where the work starts.
"""
