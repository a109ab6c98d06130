"""The processors that files are made for, and the operators that each takes: `table.TARGETS`."""
