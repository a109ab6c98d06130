"""Answers of a classifier and of its file for the same images: counts, pictures, examples."""
