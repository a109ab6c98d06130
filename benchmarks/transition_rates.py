"""Training with a schedule of transition rates, beside one of the learning rate alone.

Float models of three tasks are trained by `glyphs_w4a4.yaml`, on other pictures where the task has
others: a thousand printed characters, from the models of `peers.py` of each seed, for 400 steps of
64 pictures; fifty of them and textures, from one model each, for 200 steps of 32. They run with
labels alone and with a teacher, with the settings of the file and with those of `glyphs_w2a2.yaml`,
with `recipes.transition_rate` and without. Top-1 is on held-out pictures.

    python benchmarks/transition_rates.py
    python benchmarks/transition_rates.py --tasks=glyphs --bits=2 --seeds=0

Rows that the CSV file has are not made again.
"""

import functools
import itertools
import json
import pathlib
from typing import Any

import peer_sat
import peer_start
import peer_task
import pretrained_tasks
import rich.console
import tf_keras as keras
from absl import app, flags
from recipes_of_quantize import TASKS, data_of
from rows import as_table, read_csv, with_spread, write_csv

_PEERS = flags.DEFINE_string("peers", "runs/peers", "folder with the models of peers.py")
_LOSSES = flags.DEFINE_list("losses", ["teacher", "labels"], "what models learn from")
_TO = flags.DEFINE_string("to", "benchmarks/results/transition_rates.csv", "where to write rows")

# These are the settings of glyphs_w2a2.yaml, but for its constant rescaling.
_BY_HAND = (
    *("stages.quantized.base_learning_rate=2.4", "calibration.reconstruction_steps=100"),
    *("recipes.distillation.temperature=8", "recipes.distillation.weight=0.7"),
)
_PLAIN = "recipes.transition_rate=null"
WAYS: dict[str, tuple[str, ...]] = {
    "plain": (_PLAIN,),
    "transition rate": (),
    "first rate of 0.005": ("recipes.transition_rate.first_rate=0.005",),
    "by hand": (_PLAIN, *_BY_HAND),
    "by hand + transition rate": _BY_HAND,
}
_UNTAUGHT = "recipes.distillation=null"


def _start(task: str, seed: int) -> tuple[pathlib.Path, peer_task.Images, tuple[str, ...]]:
    """The float model of a task, its held-out pictures, and settings for its own pictures."""
    if task == "glyphs":
        work = pathlib.Path(_PEERS.value)
        peer_start.prepare(work, [seed], rich.console.Console())
        case = peer_start.Case(bits=32, seed=seed, work=work)
        return case.start, peer_task.read(str(case.data))[1], ()
    folder = pathlib.Path("runs/recipes", task)
    file = pretrained_tasks.prepare(TASKS[task], folder)
    settings = (
        *(f"data={json.dumps(data_of(folder / 'photos'))}", "model=null"),
        *("policy.input_range=[0, 255]", "stages.quantized.steps=200"),
        *("stages.float.batch_size=32", "stages.quantized.batch_size=32"),
    )
    return file, _held_out(task), settings


@functools.cache
def _held_out(task: str) -> peer_task.Images:
    return TASKS[task].examples()[1]


def _row(task: str, bits: int, seed: int, taught: str, way: str) -> dict[str, Any]:
    keras.backend.clear_session()
    file, test, settings = _start(task, seed)
    overrides = [*settings, *WAYS[way]]
    if taught == "labels":
        overrides = [each for each in overrides if "distillation" not in each] + [_UNTAUGHT]
    folder = pathlib.Path("runs/transition_rates")
    found = peer_sat.run(file, folder, test, bits=bits, seed=seed, overrides=overrides)
    return {"top1": f"{found['top1']:.2f}", "seconds": f"{found['seconds']:.0f}"}


def main(argv: list[str]) -> None:
    """Runs what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    peer_task.one_thread()
    rows: list[dict[str, Any]] = [*read_csv(_TO.value)]
    keys = ("task", "bits", "seed", "loss", "way")
    done = {tuple(str(row[key]) for key in keys) for row in rows}
    cases = itertools.product(
        _LOSSES.value, flags.FLAGS.seeds, flags.FLAGS.tasks, flags.FLAGS.bits, flags.FLAGS.ways
    )
    for taught, seed, task, bits, way in cases:
        case = (task, bits, seed, taught, way)
        if case not in done:
            row = _row(task, int(bits), int(seed), taught, way)
            rows.append({**dict(zip(keys, case, strict=True)), **row})
            write_csv(rows, _TO.value)
            print(*rows[-1].values(), flush=True)
    lines = []
    for case in dict.fromkeys(tuple(row[key] for key in keys[:2] + keys[3:4]) for row in rows):
        line = dict(zip(("task", "bits", "loss"), case, strict=True))
        for way in WAYS:
            of_way = [
                float(row["top1"])
                for row in rows
                if (row["task"], row["bits"], row["loss"], row["way"]) == (*case, way)
            ]
            line[way] = with_spread(of_way) if of_way else ""
        lines.append(line)
    rich.console.Console(width=160).print(as_table(lines, "Top-1 in percent"))


if __name__ == "__main__":
    flags.FLAGS.set_default("tasks", ["glyphs", "glyphs_50", "textures"])
    flags.FLAGS.set_default("bits", ["2", "4", "3"])
    flags.FLAGS.set_default("seeds", ["0", "1", "2"])
    flags.FLAGS.set_default("ways", list(WAYS))
    app.run(main)
