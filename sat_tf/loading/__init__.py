"""Reading model files: their contents, whether they run code, and the one function that loads."""
