"""The files of a run: folder, checkpoints, histories, classifiers.

Resuming reads, in this order: `run_folder` (is it the same run, and which stage is next),
`classifier_file` (the models of finished stages), `checkpoints` (weights, optimizer, metrics and
position of the stage in training), `history` (curves, cut back to that position).
"""
