"""The versions of Python, TensorFlow, NumPy and LiteRT that the package works with.

Each row is a session with a fresh environment: the wheel of this folder is installed with the
versions of the row, and tests/versions/smoke.py runs there from an empty folder. An environment has
2 GB, and goes when its session is done. The outcomes go into benchmarks/results/versions.csv,
unless another distribution is given.

    nox
    nox --session versions-oldest versions-newest
    nox --session versions-newest -- dist/sat_tf-0.2.0.tar.gz
"""

import csv
import json
import pathlib
import re
import shutil
import time

import nox

_REPOSITORY = pathlib.Path(__file__).resolve().parent
_RESULTS = _REPOSITORY / "benchmarks" / "results" / "versions.csv"

# A session whose Python this machine lacks would otherwise be skipped as if it had passed.
nox.options.error_on_missing_interpreters = True

# The ends of each range, and every minor version of TensorFlow between them; of Python 3.12 the
# oldest tf_keras that works there. A version that is left out is the newest that pip finds, and
# tf_keras has the minor version of TensorFlow, which pip sees to.
ROWS = {
    "oldest": (
        "3.11",
        {"tensorflow": "2.16.*", "numpy": "1.26.*", "ai-edge-litert": "2.1.6", "keras": "3.2.*"},
    ),
    "2.17": ("3.11", {"tensorflow": "2.17.*", "numpy": "1.26.*", "ai-edge-litert": "2.2.*"}),
    "2.18": ("3.11", {"tensorflow": "2.18.*", "numpy": "2.0.*"}),
    "2.19": ("3.12", {"tensorflow": "2.19.*", "numpy": "2.1.*", "ai-edge-litert": "2.1.6"}),
    "2.20": ("3.13", {"tensorflow": "2.20.*", "numpy": "2.*", "ai-edge-litert": "2.2.*"}),
    "NumPy 1": ("3.11", {"tensorflow": "2.21.*", "numpy": "1.26.*", "ai-edge-litert": "2.1.6"}),
    "newest": ("3.13", {}),
}


def lowest_requirements() -> dict[str, str]:
    """The first series of the range of every requirement in `pyproject.toml`, but tf_keras."""
    project = nox.project.load_toml(_REPOSITORY / "pyproject.toml")["project"]
    # Requirements of some Pythons alone, behind a semicolon, are left out.
    split = (re.fullmatch(r"([\w-]+)>=([\d.]+)[^;]*", words) for words in project["dependencies"])
    return {one[1]: f"{one[2]}.*" for one in split if one and one[1] != "tf_keras"}


def _try(session: nox.Session, name: str, pinned: dict[str, str]) -> None:
    """Installs and checks a row, and records what happened."""
    start, place = time.perf_counter(), pathlib.Path(session.create_tmp()).resolve()
    if session.posargs:
        distribution = str(pathlib.Path(session.posargs[0]).resolve(strict=True))
    else:
        words = ("pip", "wheel", "-q", "--no-deps", "-w", str(place), ".")
        session.run("python", "-m", *words, silent=True)
        (distribution,) = map(str, place.glob("*.whl"))
    # The repository must not be imported in place of the wheel.
    for part in ("tests/reference.py", "tests/versions/smoke.py"):
        copy = place / part
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_REPOSITORY / part, copy)
    (place / "empty").mkdir()
    session.chdir(place / "empty")
    try:
        versions = (f"{package}=={wanted}" for package, wanted in pinned.items())
        session.install(distribution, *versions)
        said = session.run(
            *("python", str(place / "tests" / "versions" / "smoke.py")),
            env={"PYTHONPATH": ""},
            silent=True,
            success_codes=[0, 1],
        )
    finally:
        shutil.rmtree(session.virtualenv.location, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
    found = json.loads(str(said).strip().splitlines()[-1])
    text = "; ".join(f"{check}: {found['outcomes'][check]}" for check in found["failed"])
    row = {
        "row": name,
        **found["versions"],
        "result": f"failed: {text}" if text else "passed",
        "details": "; ".join(found["outcomes"].values()),
        "seconds": f"{time.perf_counter() - start:.0f}",
    }
    session.log(str(row))
    if not session.posargs:
        _record(row)
    if text:
        session.error(text)


def _record(row: dict[str, str]) -> None:
    """Puts a row into the results, in the place of an older one."""
    with _RESULTS.open(newline="", encoding="utf-8") as file:
        found = csv.DictReader(file)
        rows = {old["row"]: old for old in found} | {row["row"]: row}
    with _RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, found.fieldnames, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[name] for name in ROWS if name in rows)


def _add(name: str, python: str, pinned: dict[str, str]) -> None:
    """Adds the session of a row."""
    wanted = {**lowest_requirements(), **pinned} if name == "oldest" else pinned

    @nox.session(name=f"versions-{name.replace(' ', '_')}", python=python)
    def versions(session: nox.Session) -> None:
        _try(session, name, wanted)


for _name, (_python, _pinned) in ROWS.items():
    _add(_name, _python, _pinned)
