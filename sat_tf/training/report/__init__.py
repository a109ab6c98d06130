"""The results of a run: tables, curves and the HTML report."""
