"""The certificate of a file: `proof` makes it, from a `comparison`."""
