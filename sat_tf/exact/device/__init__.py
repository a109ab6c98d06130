"""Verification on other machines: a `kit` goes to one, and a `report` comes back."""
