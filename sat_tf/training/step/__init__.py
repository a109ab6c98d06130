"""One training step: what learns, on which devices, how fast, and from what it is fed."""
