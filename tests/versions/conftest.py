"""The smoke test is a program: `make test-versions` runs it in environments of its own."""

collect_ignore = ["smoke.py"]
