"""Every experiment of the paper as data: its rows, their data sets, and their outcomes."""
