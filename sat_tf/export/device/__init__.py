"""Verification on other machines.

`kit` is what goes to one, with `check`, the script that runs there by itself; `report` is what
comes back. `arm_root` and `emulator` are an Arm machine on this one; `emulated` runs a kit there.
"""
