"""The processors that a file is made for, and what each of them takes: `table.TARGETS`."""
