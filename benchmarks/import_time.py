"""Seconds that `import sat_tf` takes beyond importing TensorFlow and TFMOT.

Each run is a new process that imports TensorFlow, Keras 2 and TFMOT first, and then sat_tf; the
time of the second part is what counts. `sat-tf --help` is timed as a command.

    python benchmarks/import_time.py
"""

import statistics
import subprocess
import sys
import time

import rich.console
import rows
from absl import app, flags

_RUNS = flags.DEFINE_integer("runs", 7, "processes of each kind")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/import_time.csv", "where to write rows")

_IMPORTS = """
import time
start = time.perf_counter()
import tensorflow, tf_keras, tensorflow_model_optimization
between = time.perf_counter()
import sat_tf
sat_tf.quantize_model  # names may be imported late
print(between - start, time.perf_counter() - between)
"""


def _python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def main(argv: list[str]) -> None:
    """Runs the processes, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    seconds: dict[str, list[float]] = {
        "TensorFlow, Keras 2, TFMOT": [],
        "sat_tf after them": [],
        "sat-tf --help": [],
    }
    _python("-c", _IMPORTS)  # files are read from disk once
    for _ in range(_RUNS.value):
        theirs, ours = map(float, _python("-c", _IMPORTS).split()[-2:])
        start = time.perf_counter()
        _python("-m", "sat_tf", "--help")
        for name, taken in zip(seconds, (theirs, ours, time.perf_counter() - start), strict=True):
            seconds[name].append(taken)
    results = []
    for name, taken in seconds.items():
        low, middle, high = statistics.quantiles(taken, n=4)
        results.append(
            {
                "what": name,
                "seconds": f"{middle:.3f}",
                "quartiles": f"{low:.3f} to {high:.3f}",
                "runs": str(len(taken)),
            }
        )
    console = rich.console.Console()
    console.print(rows.as_table(results, "importing, medians of new processes"))
    rows.write_csv(results, _OUTPUT.value)
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
