"""The files of a run: folder, state, checkpoints, histories, classifiers."""
