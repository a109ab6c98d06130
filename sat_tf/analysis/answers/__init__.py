"""What a classifier and its file answer for the same images: counts, pictures, examples."""
