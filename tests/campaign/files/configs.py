"""Hostile configurations: read, and those with extreme values that pass are trained for two steps.

A configuration that is read is the same one when it is written and read again.
"""

import pathlib
import random
import shutil
from typing import Any

import yaml

from tests.campaign.cases import Case
from tests.campaign.mutation import HOSTILE_TEXTS, changed_value, damaged
from tests.campaign.originals import original

_NAME = "run.yaml"
_NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    0.0,
    0.5,
    0.999,
    1.0,
    1e-30,
    1e-8,
    1e3,
    1e9,
    2**31,
    2**32,
    -1,
    10**6,
)
_WORDS = (None, True, False, "auto", "best", "last", "none", "mirrored", "multi_worker", "vanilla")
# Text that is hard to read as YAML, whatever it says.
_HARD = (
    *("a: &a [*a]", "a: " + "[" * 5000, "? [a, b]\n: c", "a: 1\na: 2", "%YAML 9.9\n---\na: 1"),
    *(
        "!!python/object/apply:os.system ['touch outside']",
        "a: !!python/name:os.system",
        "--- a\n--- b",
    ),
    *("a: " + "9" * 10_000, "a: 0x" + "f" * 300, "a: 1:" + "59:" * 100, "a: 2026-02-30", "\ta: 1"),
    *(
        "a: |\n" + " x\n" * 50_000,
        "a: \x07",
        "a: '\\ud800'",
        "\ufeffa: 1",
        "<<: {a: 1}",
        "- a",
        "a",
    ),
    "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]),
    "k: &k {a: 1}\n" + "\n".join(f"k{n}: {{<<: [*k, *k, *k]}}" for n in range(2000)),
)
_READ = """\
import sys
from sat_tf.commands.main import report_errors
from sat_tf.commands.train import load_config
from sat_tf.training.config import config_text, parse_config

def read():
    found = load_config("run.yaml")
    text = config_text(found)
    if parse_config(text) != found:
        raise SystemError(f"it is another one when it is read again: {text}")

sys.exit(report_errors(read))
"""


def make(rng: random.Random) -> Case:
    """A configuration that is read and written again."""
    values = yaml.safe_load(original("run.yaml").read_text("utf-8"))
    kind = rng.choices(("values", "changed", "damaged", "hard", "binary"), (40, 30, 15, 12, 3))[0]
    if kind == "values":
        content = _text(_extreme(values, rng))
    elif kind == "changed":
        content = _text(changed_value(values, rng))
    elif kind == "damaged":
        content = damaged(original("run.yaml").read_bytes(), rng)
    elif kind == "hard":
        content = rng.choice(_HARD).encode("utf-8", "surrogatepass")
        if rng.random() < 0.5:
            content = original("run.yaml").read_bytes() + b"\n" + content
    else:
        content = rng.choice(
            (original("images.npy").read_bytes(), b"\xff\xfea\0", rng.randbytes(99))
        )
    pathlib.Path(_NAME).write_bytes(content)
    pathlib.Path("read").write_text(_READ)
    return Case(["python", "read"], [_NAME])


def make_trained(rng: random.Random) -> Case:
    """A configuration with extreme values, trained for two steps at most."""
    from sat_tf.messages import RunError
    from sat_tf.training.config import parse_config

    shutil.copy(original("digits.keras"), "digits.keras")
    values = yaml.safe_load(original("run.yaml").read_text("utf-8"))
    for _ in range(100):
        changed = _small(_extreme(values, rng, times=rng.choice((1, 2, 3))))
        content = _text(changed)
        try:
            parse_config(content.decode())
            break
        except RunError:
            continue
    pathlib.Path(_NAME).write_bytes(content)
    words, left = ["train", "--config", _NAME, "--out", "run"], ["run/*", "run/.lock"]
    return Case(words, _SECTIONS, left, _unfinished, leaves=left, most_seconds=60)


# An error is about one of these. A run that fails keeps what it has done, to be resumed.
_SECTIONS = (
    *(_NAME, "digits", "run", "stage", "polic", "calibration", "export", "recipes", "loss"),
    *("training", "data", "model", "TF_CONFIG"),
)


def _unfinished(status: int) -> str | None:
    """Says what a run lacks that ended well."""
    if not pathlib.Path("run/results.json").is_file():
        return "there are no results"
    return "codes differ" if status == 1 else None


def _text(values: Any) -> bytes:
    text = yaml.safe_dump(values, allow_unicode=True, sort_keys=False)
    return text.encode("utf-8", "surrogatepass")


def _extreme(
    values: dict[str, Any], rng: random.Random, times: int | None = None
) -> dict[str, Any]:
    """The configuration with some values at, near and beyond the ends of what they may be."""
    found = yaml.safe_load(yaml.safe_dump(values))
    for _ in range(times or rng.choice((1, 1, 2, 3))):
        section = found
        while True:
            key = rng.choice(sorted(section))
            if not isinstance(section[key], dict) or not section[key]:
                break
            section = section[key]
        old = section[key]
        if isinstance(old, bool):
            section[key] = not old
        elif isinstance(old, int | float) and rng.random() < 0.8:
            section[key] = rng.choice(_NUMBERS)
        elif isinstance(old, str) and rng.random() < 0.3:
            section[key] = rng.choice(HOSTILE_TEXTS[:20])
        else:
            section[key] = rng.choice((*_WORDS, *_NUMBERS))
    return found


def _small(values: dict[str, Any]) -> dict[str, Any]:
    """The same with few steps, images and repetitions, as time is not what is tried here."""
    for stage in values.get("stages", {}).values():
        if isinstance(stage, dict) and isinstance(steps := stage.get("steps") or 2, int | float):
            stage["steps"] = min(2, steps)
    values["data"] = {**values["data"], "name": "digits", "options": {"image_size": 8}}
    calibration = values["calibration"]
    for key, most in (("num_images", 64), ("reconstruction_steps", 2)):
        if isinstance(calibration.get(key), int):
            calibration[key] = min(calibration[key], most)
    if isinstance(values["export"].get("verify_images"), int):
        values["export"]["verify_images"] = min(values["export"]["verify_images"], 4)
    return values
