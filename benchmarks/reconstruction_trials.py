"""Top-1 of two other ways to reconstruct, beside `sat_tf.reconstruct`, at the same steps.

Float models and examples are those of `reconstruction.py`:

- calibrated: alone;
- reconstructed: by `sat_tf.reconstruct`;
- activations first: in two reconstructions of half the steps, the first with weights that are not
  rounded, from levels and statistics that fit these, and the second with rounded ones (GPLQ, Liang
  et al., arXiv 2506.11784, whose second stage is any method without training);
- activations first, by block: every block has half its steps with weights that are not rounded, and
  half with rounded ones;
- activations dropped: in the steps of blocks half of the values of every tensor, by lot, are not
  quantized (QDrop, Wei et al., ICLR 2022).

    python benchmarks/reconstruction_trials.py
    python benchmarks/reconstruction_trials.py --tasks=signals --bits=w4a4 --seeds=0

Rows that the CSV file has are not made again.
"""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import peer_task
import reconstruction_tasks
import rich.console
import tensorflow as tf
import tf_keras
from absl import app, flags
from reconstruction_tasks import Case
from rows import as_table, read_csv, with_spread, write_csv

import sat_tf
from sat_tf.qat.reconstruction import blocks, fit
from sat_tf.qat.reconstruction.reconstruct import STEPS
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.pact import OffsetQuantizer, StreamQuantizer, UpToItsLevel

_SHARE = 0.5

_TASKS = flags.DEFINE_list("tasks", ["signals", "glyphs_50", "glyphs_1000", "keras3"], "which ones")
_BITS = flags.DEFINE_list("bits", ["w4a4", "w3a3", "w2a4"], "of weights and activations")
_WAYS = flags.DEFINE_list("ways", [], "which ones, with ; for commas in names; all by default")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1"], "of the examples, and of their order")
_FOLDER = flags.DEFINE_string("folder", reconstruction_tasks.FOLDER, "where float models are kept")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/reconstruction_trials.csv", "rows")


def _calibrated(case: Case) -> Any:
    return reconstruction_tasks.calibrated(case, case.twin())


def _reconstructed(case: Case) -> Any:
    model = case.twin()
    quantized = reconstruction_tasks.calibrated(case, model)
    reconstruction_tasks.fit(case, model, quantized)
    return quantized


@contextlib.contextmanager
def _weights_rounded_by(variable: tf.Variable) -> Iterator[None]:
    """Rounds the weights of all layers only while a variable is True, also in traced functions."""
    rounded = QuantizedLayer.effective_kernel

    def effective_kernel(layer: QuantizedLayer, training: Any = False) -> tf.Tensor | None:
        kernel = rounded(layer, training)
        if kernel is None or layer.constant_kernel is not None:
            return kernel
        unrounded = layer.weight_quantizer.with_settings(num_bits=None)
        latent = tf.convert_to_tensor(getattr(layer.layer, layer._kernel_name))
        return tf.where(variable, kernel, unrounded(latent, training, layer.kernel_variables))

    with mock.patch.object(QuantizedLayer, "effective_kernel", effective_kernel):
        yield


def _activations_first(case: Case) -> Any:
    model, rounds = case.twin(), tf.Variable(False, trainable=False)
    with _weights_rounded_by(rounds):
        quantized = reconstruction_tasks.calibrated(case, model)
        reconstruction_tasks.fit(case, model, quantized, steps=STEPS // 2)
    settings = {"num_images": len(case.images), "clipping_levels": False, "progress": False}
    sat_tf.calibrate(quantized, case.images, **settings)
    reconstruction_tasks.fit(case, model, quantized, steps=STEPS // 2)
    return quantized


def _activations_first_by_block(case: Case) -> Any:
    rounds, fit_at_once = tf.Variable(True, trainable=False), fit.Part.fit

    def fit_in_two(
        block: fit.Part,
        plan: fit.FitSchedule,
        fitted: np.ndarray,
        held_out: np.ndarray,
        *arguments: Any,
        **settings: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        run = functools.partial(fit_at_once, block)
        if "measure_statistics" in settings:  # the whole network
            return run(plan, fitted, held_out, *arguments, **settings)
        variables = {id(v): v for node in block.span.nodes for v in node.layer.variables}.values()
        start, before = [variable.numpy() for variable in variables], block.errors(held_out)
        half = plan._replace(steps=plan.steps // 2, measured=plan.measured // 2)
        rounds.assign(False)
        run(half, fitted, held_out, *arguments, **settings)
        rounds.assign(True)
        _, after = run(half, fitted, held_out, *arguments, **settings)
        if np.sum(after) < np.sum(before):
            return before, after
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        return before, before

    with _weights_rounded_by(rounds), mock.patch.object(fit.Part, "fit", fit_in_two):
        return _reconstructed(case)


def _activations_dropped(case: Case) -> Any:
    in_steps_of_blocks = False

    def computed(*arguments: Any, on_batch_statistics: bool = False) -> dict[str, Any]:
        nonlocal in_steps_of_blocks
        in_steps_of_blocks = not on_batch_statistics
        try:
            return blocks.computed(*arguments, on_batch_statistics=on_batch_statistics)
        finally:
            in_steps_of_blocks = False

    def dropped(quantize: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def quantize_some(quantizer: Any, inputs: tf.Tensor, *arguments: Any) -> tf.Tensor:
            nonlocal in_steps_of_blocks
            # A quantizer may call that of its base.
            drops, in_steps_of_blocks = in_steps_of_blocks, False
            value = quantize(quantizer, inputs, *arguments)
            in_steps_of_blocks = drops
            if not drops:
                return value
            drawn = tf.random.uniform(tf.shape(value), seed=case.seed)
            return tf.where(drawn < _SHARE, quantizer.float_twin(inputs), value)

        return quantize_some

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(fit, "computed", computed))
        for quantizer in (UpToItsLevel, StreamQuantizer, OffsetQuantizer):
            patch = mock.patch.object(quantizer, "__call__", dropped(quantizer.__call__))
            stack.enter_context(patch)
        return _reconstructed(case)


WAYS: Mapping[str, Callable[[Case], Any]] = {
    "calibrated": _calibrated,
    "reconstructed": _reconstructed,
    "activations first": _activations_first,
    "activations first, by block": _activations_first_by_block,
    "activations dropped": _activations_dropped,
}


def main(argv: list[str]) -> None:
    """Measures what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    peer_task.one_thread()
    ways = [name.replace(";", ",") for name in _WAYS.value] or list(WAYS)
    rows = read_csv(_OUTPUT.value)
    names = ("task", "bits", "seed", "way")
    for keys in itertools.product(_TASKS.value, _BITS.value, _SEEDS.value, ways):
        if any(tuple(row[name] for name in names) == keys for row in rows):
            continue
        task, bits, seed, way = keys
        tf_keras.backend.clear_session()
        tf_keras.utils.set_random_seed(int(seed))
        case = reconstruction_tasks.find_case(task, bits, int(seed), folder=_FOLDER.value)
        start = time.process_time()
        top1 = case.measured(WAYS[way](case).predict_on_batch)["top1"]
        seconds = time.process_time() - start
        numbers = {"top1": f"{top1:.2f}", "seconds": f"{seconds:.1f}"}
        rows.append({**dict(zip(names, keys, strict=True)), "kind": case.task.kind, **numbers})
        write_csv(rows, _OUTPUT.value)
        print(*rows[-1].values(), flush=True)
    rich.console.Console(width=160).print(as_table(_summary(rows), "top-1 in percent"))


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A line for each task and bits: the mean over seeds, and lowest to highest."""
    lines = []
    for keys in dict.fromkeys((row["kind"], row["bits"]) for row in rows):
        of_case = [row for row in rows if (row["kind"], row["bits"]) == keys]
        cells = {
            way: with_spread([float(row["top1"]) for row in of_case if row["way"] == way])
            for way in WAYS
        }
        lines.append({"task": keys[0], "bits": keys[1], **cells})
    return lines


if __name__ == "__main__":
    app.run(main)
