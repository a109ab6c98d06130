"""The report of a model that was quantized: its results, its layers, and one page."""
