"""Configurations of runs, and their files."""
