"""What a run has on disk."""
