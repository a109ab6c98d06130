"""Hostile values of TF_CONFIG: what is no cluster, and clusters of one process."""

import json
import pathlib
import random

from tests.campaign.cases import Case
from tests.campaign.mutation import HOSTILE_TEXTS, changed_value, damaged
from tests.campaign.originals import original

_ADDRESSES = (
    *(
        "localhost:0",
        "localhost:65536",
        "localhost",
        ":2222",
        "localhost:x",
        "localhost:-1",
        "a b:1",
    ),
    *(
        "localhost:22",
        "256.1.1.1:2222",
        "[::1]:2222",
        "localhost:٣",
        "localhost:2222/x",
        "",
        5,
        None,
    ),
)


def make(rng: random.Random) -> Case:
    """A short run in an environment that describes no cluster, or one of one process."""
    good = {"cluster": {"worker": ["localhost:2222"]}, "task": {"type": "worker", "index": 0}}
    kind = rng.choice(("changed", "changed", "damaged", "address", "text", "deep"))
    if kind == "changed":
        text = json.dumps(changed_value(good, rng))
    elif kind == "damaged":
        text = damaged(json.dumps(good).encode(), rng).decode("utf-8", "replace")
    elif kind == "address":
        address = rng.choice((*_ADDRESSES, *HOSTILE_TEXTS))
        text = json.dumps({**good, "cluster": {rng.choice(("worker", "chief")): [address]}})
    elif kind == "deep":
        text = "[" * rng.choice((100, 5000, 100_000))
    else:
        text = rng.choice(HOSTILE_TEXTS)
    text = text.replace("\0", " ").encode("utf-8", "replace").decode()[:100_000]
    for name in ("digits.keras", "run.yaml"):
        pathlib.Path(name).write_bytes(original(name).read_bytes())
    words = ["train", "--config", "run.yaml", "--out", "run"]
    words += ["--set", f"distribution={rng.choice(('auto', 'multi_worker'))}"]
    left, environment = ["run/*", "run/.lock"], {"TF_CONFIG": text}
    return Case(words, ["TF_CONFIG"], left, leaves=left, environment=environment, most_seconds=40)
