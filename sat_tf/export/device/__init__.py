"""Verification on other machines.

`kit` is what goes to one, with `check`, the script that runs there by itself; `report` is what
comes back.
"""
