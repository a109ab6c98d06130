"""What a run achieved, to look at."""
