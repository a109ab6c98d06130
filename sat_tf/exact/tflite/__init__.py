"""TFLite files: written, read back, compared."""
