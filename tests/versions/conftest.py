"""Programs that `make test-versions` and `make dist` run in environments of their own."""

collect_ignore = ["smoke.py", "wheel.py"]
