"""Speed of each quantizer function alone, beside a copy of the same tensors in memory.

What a function has to move is each tensor that it takes or gives, once: x and q forward; in both
directions the upstream gradient and dx as well, and x once more. That many bytes by the time it
takes are its GB/s; a copy reads and writes at the speed that memory has. Runs are interleaved, and
each number of threads has a process of its own.

    python benchmarks/quantizer_speed.py
    python benchmarks/quantizer_speed.py --elements=1e5,1e6 --threads=1
"""

import concurrent.futures
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import rich.console
import rows
from absl import app, flags
from turns import seconds_by_turns

_ELEMENTS = flags.DEFINE_list(
    "elements", ["1e3", "1e4", "1e5", "1e6", "1e7", "1e8"], "values in a tensor"
)
_THREADS = flags.DEFINE_list("threads", ["1", "2"], "threads inside an operation")
_SECONDS = flags.DEFINE_float("seconds", 1.0, "at least so long for each function and size")
_BITS = flags.DEFINE_integer("bits", 4, "bits of the quantizers")
_OUTPUT = flags.DEFINE_string(
    "output", "benchmarks/results/quantizer_speed.csv", "where to write rows"
)

_FEWEST_RUNS = 9
_MOST_RUNS = 2000
# Tensors that are moved at least, by direction.
_TENSORS = {"copy": 2, "forward": 2, "both": 5}


def _functions(bits: int) -> dict[str, Callable]:
    """Each function, of a tensor and a clipping level."""
    import tensorflow as tf

    from sat_tf.core import asymmetric as offset
    from sat_tf.core import dorefa, pact

    return {
        "relu": lambda x, level: tf.nn.relu(x),
        "quantize_activation": lambda x, level: pact.quantize_activation(x, level, bits),
        "quantize_stream": lambda x, level: pact.quantize_stream(x, level, bits),
        "quantize_offset": lambda x, level: offset.quantize_offset(x, level, bits, lowest=-0.28),
        "clamp_weights": lambda x, level: dorefa.clamp_weights(x),
        "quantize_weights": lambda x, level: dorefa.quantize_weights(x, bits),
        "rescale_weights": lambda x, level: x * dorefa.rescale_factor(x, fan_out=64),
    }


def _measure(elements: int, threads: int, seconds: float, bits: int) -> list[dict[str, str]]:
    """All functions on tensors of one size, in this process."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    x = tf.random.stateless_normal([elements], [1, 2])
    upstream, level = tf.random.stateless_normal([elements], [3, 4]), tf.constant(2.5)
    # Each element is read and written once, on all threads.
    calls = {("copy", "copy"): functools.partial(tf.function(tf.negative), x)}
    for name, function in _functions(bits).items():
        calls[name, "forward"] = functools.partial(tf.function(function), x, level)
        both = tf.function(functools.partial(_forward_and_backward, function))
        calls[name, "both"] = functools.partial(both, x, level, upstream)
    durations = seconds_by_turns(calls, _rounds(seconds * len(calls)), warm_up=2)
    copied = _gigabytes("copy", elements) / statistics.median(durations["copy", "copy"])
    return [
        _row(name, direction, elements, threads, durations[name, direction], copied)
        for name, direction in calls
    ]


def _forward_and_backward(function: Callable, x: Any, level: Any, upstream: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch([x, level])
        made = function(x, level)
    return made, tape.gradient(made, [x, level], upstream)


def _rounds(seconds: float) -> Iterator[int]:
    end = time.perf_counter() + seconds
    for index in range(_MOST_RUNS):
        if index >= _FEWEST_RUNS and time.perf_counter() > end:
            return
        yield index


def _gigabytes(direction: str, elements: int) -> float:
    return _TENSORS[direction] * 4 * elements / 1e9


def _row(
    name: str, direction: str, elements: int, threads: int, durations: list[float], copied: float
) -> dict[str, str]:
    low, middle, high = statistics.quantiles(durations, n=4)
    moved = _gigabytes(direction, elements)
    return {
        "function": name,
        "direction": direction,
        "elements": f"{elements:.0e}",
        "threads": str(threads),
        "GB/s": f"{moved / middle:.2f}",
        "of the copy": f"{moved / middle / copied:.2f}",
        "quartiles": f"{moved / high / copied:.2f} to {moved / low / copied:.2f}",
        "runs": str(len(durations)),
    }


def main(argv: list[str]) -> None:
    """Measures everything, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console, results = rich.console.Console(width=110), []
    for threads in map(int, _THREADS.value):
        # TensorFlow's number of threads is that of a process.
        with concurrent.futures.ProcessPoolExecutor(
            max_workers=1, mp_context=multiprocessing.get_context("spawn")
        ) as pool:
            for elements in (int(float(text)) for text in _ELEMENTS.value):
                with console.status(f"{elements:.0e} elements, threads: {threads}"):
                    task = elements, threads, _SECONDS.value, _BITS.value
                    results += pool.submit(_measure, *task).result()
    title = f"quantizers of {_BITS.value} bits alone, medians of interleaved runs"
    console.print(rows.as_table(results, title))
    rows.write_csv(results, _OUTPUT.value)
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
