"""The integer operations of a file: what they are, and what they compute."""
