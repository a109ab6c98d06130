import signal
import subprocess
import sys

import pytest

from sat_tf.export.litert import processes

HEAVY = "print(sorted({'tensorflow', 'tf_keras', 'matplotlib'} & set(sys.modules)))"


@pytest.mark.parametrize(
    ("status", "errors", "expected"),
    [
        (-signal.SIGABRT, b"", "it ends the process with SIGABRT"),
        (-signal.SIGSEGV, b"noise", "it ends the process with SIGSEGV"),
        (-250, b"", "it ends the process with signal 250"),
        (1, b"first\nlast\n", "its process ended with status 1: last"),
        (0, b"", "its process ended with status 0: no message"),
    ],
)
def test_endings_are_put_into_words(status, errors, expected):
    assert processes.describe_ending(status, errors) == expected


@pytest.mark.parametrize(
    "module", ["litert.processes", "litert.workers", "evaluate", "file_verification"]
)
def test_processes_that_run_files_load_no_tensorflow(module, tmp_path):
    # From a folder whose modules would be found first.
    (tmp_path / "numpy.py").write_text("raise ImportError")
    code = f"import sys; import sat_tf.export.{module}; {HEAVY}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=processes.child_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
