"""The files of a run: folder, metrics, classifiers.

Resuming reads, in this order: `run_folder` (is it the same run, and which stage is next),
`classifier_file` (the models of finished stages), `loop.callbacks.Backup` (the last epoch of the
stage in training), `history` (the metrics, cut back to that epoch).
"""
