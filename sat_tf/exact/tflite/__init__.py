"""Writing, reading and comparing TFLite files."""
