"""The paper's experiments: the rows of its tables and figures."""
