"""Every experiment of the paper as data: its rows, where they can run, and what came out."""
