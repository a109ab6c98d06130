"""The operations of a deployed graph, bit for bit as LiteRT's kernels, and its file."""
