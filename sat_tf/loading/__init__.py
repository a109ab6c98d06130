"""Reading model files: what is in them, whether it runs code, and the one function that loads."""
