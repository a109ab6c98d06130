"""Recipes beyond the paper."""
