"""Verification on other machines: a `kit` goes to one, and its script `check` runs there."""
