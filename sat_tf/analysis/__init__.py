"""What there is to know of a model: measured on its graph, its weights, and a few images."""
