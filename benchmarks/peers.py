"""Top-1 of sat-tf beside the other ways to few bits in TensorFlow, at the same budget.

All start from the same float model: a small MobileNet-V2 on a thousand printed characters, trained
for 1000 steps of 64 images. All then have 400 steps of 64 images. `METHODS` says what each of them
quantizes. sat-tf has one configuration, the same for all bits but the bits. The best peer, QKeras,
has settings of its own for each number of bits (`_QKERAS_OPTIONS`), scales for each channel of a
depthwise kernel, ranges measured in each rectifier, and the same two aids as sat-tf: normalization
statistics measured again at the end, and, where it says distilled, the float model as a teacher,
whose forward passes are all that comes on top of the budget. litert-quantizer trains nothing, and
"sat-tf; reconstructed" has the steps of a reconstruction before the others.

    python benchmarks/peers.py --qkeras_python=~/qkeras/bin/python \
        --qkeras_v3_python=~/qkeras_v3/bin/python

With --search, methods of `_BEST_RATES` run with the first seed at each of `_RATES`, as those of
`methods_on_glyphs.py` are searched, and QKeras with each teacher. Rows are written to
--search_output; the table says what was best on half of the held-out images.

    python benchmarks/peers.py --search --methods="TFMOT clusters; distilled"

QKeras and its version for Keras 3, qkeras-v3, run in environments of their own, which
`peer_qkeras.py` says how to make; without these flags their rows are left out, as are those of
litert-quantizer where it is not installed (`pip install litert-quantizer==0.11.0`). Rows that are
in the CSV already are not run again.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import peer_litert_quantizer
import peer_sat
import peer_start
import peer_task
import peer_tfmot
import rich.console
import tf_keras as keras
from absl import app, flags
from peer_start import Case
from rows import as_table, read_csv, with_spread, write_csv

_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "of weights and of the order of the images")
_METHODS = flags.DEFINE_list("methods", [], "which of them; all where none is named")
_QKERAS = flags.DEFINE_string("qkeras_python", None, "Python of an environment with QKeras")
_QKERAS_V3 = flags.DEFINE_string("qkeras_v3_python", None, "the same, with qkeras-v3")
_WORK = flags.DEFINE_string("work", "runs/peers", "folder for data, float models and runs")
_SEARCH = flags.DEFINE_bool("search", False, "tries learning rates with the first seed")
_SEARCH_OUTPUT = flags.DEFINE_string(
    "search_output", "benchmarks/results/peers_search.csv", "where --search writes rows"
)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/peers.csv", "where to write rows")

# Top-1 in percent: on all held-out images, the half that settings were chosen on, and the other.
_MEASURED = ("top1", "chosen_on", "not_chosen_on", "seconds")
_STEPS = 400


Result = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train a quantized model.

    Attributes:
        run: trains and measures one case, and takes settings of `peer_task.Recipe` by name where
            its learning rate is searched.
        bits: of weights and activations, for which it is run.
        quantizes: what it quantizes, for the table.
    """

    run: Callable[..., Result]
    bits: tuple[int, ...] = (4, 3, 2)
    quantizes: str


def _tfmot(
    make: Callable[[keras.Model, int], keras.Model], **settings: Any
) -> Callable[..., Result]:
    def run(case: Case, **searched: Any) -> Result:
        train, test = peer_task.read(str(case.data))
        # Two, as clusters are made in the layers of the model that is given.
        start, teacher = (keras.models.load_model(case.start, compile=False) for _ in range(2))
        recipe = peer_task.Recipe(steps=_STEPS, **settings, **searched)
        model = make(start, case.bits)
        return peer_task.train_and_measure(
            model, train, test, recipe, seed=case.seed, teacher=teacher
        )

    return run


def _qkeras(python: flags.FlagHolder[str | None] = _QKERAS) -> Callable[..., Result]:
    def run(case: Case, **searched: Any) -> Result:
        options = _QKERAS_OPTIONS.get(case.bits, ())
        command = [python.value, str(pathlib.Path(__file__).with_name("peer_qkeras.py"))]
        command += [f"--data={case.data}", f"--start={case.start}", f"--bits={case.bits}"]
        command += [f"--seed={case.seed}", *options]
        settings = {"steps": _STEPS, "statistics": True, **searched}
        command += ["--recipe", json.dumps(settings)]
        legacy = "1" if python is _QKERAS else "0"
        environment = {**os.environ, "TF_USE_LEGACY_KERAS": legacy, "PYTHONPATH": ""}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    return run


def _litert_quantizer(computes: str) -> Callable[[Case], Result]:
    def run(case: Case) -> Result:
        train, test = peer_task.read(str(case.data))
        model = keras.models.load_model(case.start, compile=False)
        return peer_litert_quantizer.run(model, train, test, seed=case.seed, computes=computes)

    return run


def _sat(name: str, *overrides: str) -> Callable[[Case], Result]:
    def run(case: Case) -> Result:
        _, test = peer_task.read(str(case.data))
        folder = case.work / f"{name}_{case.bits}_bits_{case.seed}"
        return peer_sat.run(
            case.start, folder, test, bits=case.bits, seed=case.seed, overrides=overrides
        )

    return run


_RECTIFIED = "weights, outputs of rectifiers; the rest is float"
_MOBILE = "everything; streams and what convolutions read of them at 8 bits"
_EIGHT_BITS = "no steps; weights, depthwise ones at 8 bits; activations at 8 bits"
# Found best for QKeras on half of the held-out images.
_QKERAS_OPTIONS: Mapping[int, tuple[str, ...]] = {2: ("--ternary",)}
# Without a teacher, a schedule of transition rates costs a point at 4 bits.
_NO_TEACHER = ("recipes.distillation=null", "recipes.transition_rate=null")
# Teachers: the weight that each has at its temperature.
_DISTILLED: Mapping[float, float] = {4.0: 0.5, 8.0: 0.7}
# For batches of 64 images; more follow as long as the highest or the lowest is the best.
_RATES = (0.1, 0.2, 0.4)
# What --search found for each number of bits. QKeras for Keras 3 has the settings of QKeras.
_BEST_RATES: Mapping[str, Mapping[int, float]] = {
    "TFMOT clusters; distilled": {4: 0.4, 3: 0.2, 2: 0.2},
    "QKeras": {4: 0.05, 3: 0.1, 2: 0.2},
    "QKeras; distilled": {4: 0.1, 3: 0.4, 2: 0.4},
    "qkeras-v3": {4: 0.05, 3: 0.1, 2: 0.2},
    "qkeras-v3; distilled": {4: 0.1, 3: 0.4, 2: 0.4},
}
_BEST_TEMPERATURES: Mapping[str, Mapping[int, float]] = {
    "QKeras; distilled": {4: 4.0, 3: 8.0, 2: 4.0},
    "qkeras-v3; distilled": {4: 4.0, 3: 8.0, 2: 4.0},
}
METHODS: dict[str, Method] = {
    "float": Method(run=peer_start.trained, bits=(32,), quantizes="nothing; 1000 steps"),
    "TFMOT 8-bit": Method(
        run=_tfmot(lambda model, bits: peer_tfmot.eight_bits(model)), bits=(8,), quantizes="all"
    ),
    "TFMOT n-bit": Method(run=_tfmot(peer_tfmot.n_bits), quantizes="everything, at the same bits"),
    "TFMOT clusters; distilled": Method(
        # The teacher of the rows of `methods_on_glyphs.csv`, which it stands beside.
        run=_tfmot(peer_tfmot.clusters, statistics=True, distillation=0.5, temperature=4.0),
        quantizes="weights of convolutions and dense layers, but of depthwise ones",
    ),
    "QKeras": Method(run=_qkeras(), quantizes=_RECTIFIED),
    "QKeras; distilled": Method(run=_qkeras(), quantizes=_RECTIFIED),
    "qkeras-v3": Method(run=_qkeras(_QKERAS_V3), quantizes=_RECTIFIED),
    "qkeras-v3; distilled": Method(run=_qkeras(_QKERAS_V3), quantizes=_RECTIFIED),
    "litert-quantizer": Method(
        run=_litert_quantizer("float answers"), bits=(4,), quantizes=f"{_EIGHT_BITS}, everywhere"
    ),
    "litert-quantizer; dynamic": Method(
        run=_litert_quantizer("dynamic"), bits=(4,), quantizes=f"{_EIGHT_BITS}, within layers"
    ),
    "sat-tf; not distilled": Method(run=_sat("plain", *_NO_TEACHER), quantizes=_MOBILE),
    "sat-tf": Method(run=_sat("distilled"), quantizes=_MOBILE),
    "sat-tf; reconstructed": Method(
        run=_sat("reconstructed", "calibration.reconstruction_steps=100"), quantizes=_MOBILE
    ),
}


def _cases(
    names: Iterable[str], seeds: Iterable[int], work: pathlib.Path
) -> Iterable[tuple[str, Case]]:
    for seed in seeds:
        for name in names:
            for bits in METHODS[name].bits:
                yield name, Case(bits=bits, seed=seed, work=work)


def _run(name: str, case: Case, **searched: Any) -> dict[str, Any]:
    """The row of a case, as `_MEASURED`."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(case.seed)
    result = METHODS[name].run(case, **searched)
    numbers = {field: f"{result[field]:.2f}" for field in _MEASURED}
    return {"method": name, "bits": case.bits, "seed": case.seed, **numbers}


def _settings(rate: float | None, temperature: float | None) -> dict[str, float]:
    """Settings of `peer_task.Recipe`, without those that a method does not have."""
    settings = {} if rate is None else {"peak_learning_rate": rate}
    if temperature is None:
        return settings
    return {**settings, "temperature": temperature, "distillation": _DISTILLED[temperature]}


def _search(
    names: Iterable[str], work: pathlib.Path, output: pathlib.Path, console: rich.console.Console
) -> None:
    """Runs the settings that are missing, writing the CSV after each; prints the best rates."""
    rows = read_csv(output)
    best = []
    for name, case in _cases(names, [int(_SEEDS.value[0])], work):
        for temperature in _DISTILLED if name in _BEST_TEMPERATURES else (None,):
            found: dict[float, float] = {}
            rates = list(_RATES)
            while rates:
                rate = rates.pop(0)
                tried = {"rate": str(rate), "temperature": str(temperature or "")}
                key = {"method": name, "bits": str(case.bits), "seed": str(case.seed), **tried}
                matching = [row for row in rows if key.items() <= row.items()]
                if not matching:
                    matching = [{**_run(name, case, **_settings(rate, temperature)), **key}]
                    rows.extend(matching)
                    write_csv(rows, output)
                    console.print(str(matching[0]))
                found[rate] = float(matching[0]["chosen_on"])
                chosen = max(found, key=found.__getitem__)
                if not rates and chosen == max(found):
                    rates = [2 * chosen]
                elif not rates and chosen == min(found):
                    rates = [chosen / 2]
            top1 = ", ".join(f"{rate}: {top1:.2f}" for rate, top1 in found.items())
            best.append({**key, "rate": chosen, "tried": top1})
    columns = ("method", "bits", "temperature", "rate", "tried")
    console.print(as_table(best, "top-1 in percent on half of the held-out images", columns))


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A line for each method: at each number of bits the mean over seeds, and lowest to highest."""
    found = {(row["method"], int(row["bits"])) for row in rows}
    lines = []
    for name, method in METHODS.items():
        cells = {}
        for bits in (32, 8, 4, 3, 2):
            values = [
                float(row["top1"])
                for row in rows
                if (row["method"], int(row["bits"])) == (name, bits)
            ]
            cells[f"{bits} bits"] = with_spread(values)
        if any((name, bits) in found for bits in method.bits):
            lines.append({"method": name, **cells, "quantized": method.quantizes})
    return lines


def main(argv: list[str]) -> None:
    """Runs what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    unknown = [name for name in _METHODS.value if name not in METHODS]
    if unknown:
        raise app.UsageError(f"--methods: received {unknown}, expected {', '.join(METHODS)}.")
    peer_task.one_thread()
    work, output = pathlib.Path(_WORK.value), pathlib.Path(_OUTPUT.value)
    peer_start.write_data(work / "glyphs.npz")
    console = rich.console.Console()
    rows = read_csv(output)
    pythons = {"QKeras": _QKERAS, "qkeras-v3": _QKERAS_V3}
    lacking = tuple(name for name, python in pythons.items() if not python.value)
    if not importlib.util.find_spec("litert_quantizer"):
        lacking += ("litert-quantizer",)
    names = _METHODS.value or [name for name in METHODS if not name.startswith(lacking)]
    if _SEARCH.value:
        searched = [name for name in names if name in _BEST_RATES]
        _search(searched, work, pathlib.Path(_SEARCH_OUTPUT.value), console)
        return
    for name, case in _cases(names, map(int, _SEEDS.value), work):
        key = (name, str(case.bits), str(case.seed))
        if key in {(row["method"], str(row["bits"]), str(row["seed"])) for row in rows}:
            continue
        best = (table.get(name, {}).get(case.bits) for table in (_BEST_RATES, _BEST_TEMPERATURES))
        rows.append(_run(name, case, **_settings(*best)))
        write_csv(rows, output)
        console.print(str(rows[-1]))
    console.print(as_table(_summary(rows), "glyphs, 1000 classes: top-1 in percent"))


if __name__ == "__main__":
    app.run(main)
