"""Which versions of Python, TensorFlow, NumPy and LiteRT the package works with.

Each row is a fresh virtual environment: the wheel of this folder is installed with the versions of
the row, and tests/versions/smoke.py runs there from an empty folder. Environments have 2 GB, and
go when their row is done. Pythons are looked for on the PATH, in pyenv and in uv; a row whose
Python is missing is reported as not run, and the status is then 1, as it is where a row failed.

    python benchmarks/versions.py
    python benchmarks/versions.py --rows=oldest,newest
    python benchmarks/versions.py --rows=newest --distribution=dist/sat_tf-0.1.0.tar.gz
"""

import ast
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping

import rich.console
import rows
from absl import app, flags

_REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
_ROWS = flags.DEFINE_list("rows", None, "names of rows; default: all")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/versions.csv", "where to write rows")
_DISTRIBUTION = flags.DEFINE_string(
    "distribution", None, "a wheel or source distribution; default: the wheel of this folder"
)
_FOLDER = flags.DEFINE_string("folder", None, "where environments are made; default: as tempfile")

_NEEDED_BYTES = 4_000_000_000
_SECONDS = 3600
_PACKAGES = ("tensorflow", "tf_keras", "keras", "numpy", "ai-edge-litert")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """An environment; a version that is left out is the newest that pip finds.

    Attributes:
        name: of the row.
        python: major and minor version.
        tensorflow: as in a requirement after "=="; tf_keras has the same minor version, which pip
            sees to.
        numpy: the same.
        litert: the same.
        keras: the same, of Keras 3.
        lowest: every other requirement of `setup.py` is at the first series of its range.
    """

    name: str
    python: str
    tensorflow: str = ""
    numpy: str = ""
    litert: str = ""
    keras: str = ""
    lowest: bool = False

    def requirements(self) -> list[str]:
        """What pip installs beside the wheel."""
        pinned = {
            "tensorflow": self.tensorflow,
            "numpy": self.numpy,
            "ai-edge-litert": self.litert,
            "keras": self.keras,
        }
        return [f"{name}=={version}" for name, version in pinned.items() if version]


# The ends of each range, and every minor version of TensorFlow between them; of Python 3.12 the
# oldest tf_keras that works there.
TABLE = (
    Row(
        name="oldest",
        python="3.11",
        tensorflow="2.16.*",
        numpy="1.26.*",
        litert="2.1.6",
        keras="3.2.*",
        lowest=True,
    ),
    Row(name="2.17", python="3.11", tensorflow="2.17.*", numpy="1.26.*", litert="2.2.*"),
    Row(name="2.18", python="3.11", tensorflow="2.18.*", numpy="2.0.*"),
    Row(name="2.19", python="3.12", tensorflow="2.19.*", numpy="2.1.*", litert="2.1.6"),
    Row(name="2.20", python="3.13", tensorflow="2.20.*", numpy="2.*", litert="2.2.*"),
    Row(name="NumPy 1", python="3.11", tensorflow="2.21.*", numpy="1.26.*", litert="2.1.6"),
    Row(name="newest", python="3.13"),
)


def find_python(version: str) -> str | None:
    """The interpreter of a version such as "3.12"; None where this machine has none."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    found = [shutil.which(f"python{version}")]
    found += map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))
    if uv := shutil.which("uv"):
        words = [uv, "python", "find", version]
        found.append(subprocess.run(words, capture_output=True, text=True, check=False).stdout)
    for path in filter(None, found):
        words = [path.strip(), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        # A shim of pyenv is on the PATH even where its version is not chosen.
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return path.strip()
    return None


def requirements() -> dict[str, str]:
    """The requirements in `setup.py`, without extras: names with their ranges."""
    tree = ast.parse((_REPOSITORY / "setup.py").read_text(encoding="utf-8"))
    (found,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "install_requires"
    )
    # Those of some Pythons alone, behind a semicolon, are left out.
    split = (re.fullmatch(r"([\w-]+)([^;]*)", words) for words in found)
    return {match[1]: match[2] for match in split if match}


def lowest_requirements(row: Row) -> list[str]:
    """Every requirement that a row does not name, at the first series of its range.

    >>> "pandas==2.2.*" in lowest_requirements(TABLE[0])
    True
    """
    named = {words.partition("==")[0] for words in row.requirements()} | {"tf_keras"}
    return [
        f"{name}=={match[1]}.*"
        for name, words in requirements().items()
        if name not in named and (match := re.match(r">=([\d.]+)", words))
    ]


def distribution(folder: pathlib.Path) -> pathlib.Path:
    """What is installed: the file that is named, or the wheel of this repository."""
    if _DISTRIBUTION.value:
        return pathlib.Path(_DISTRIBUTION.value).resolve(strict=True)
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), "."]
    subprocess.run(words, cwd=_REPOSITORY, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def smoke_test(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the smoke test and of the reference beside it, the same for all rows."""
    for name in ("tests/reference.py", "tests/versions/smoke.py"):
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_REPOSITORY / name, copy)
    return copy


def try_row(
    row: Row, wheel: pathlib.Path, smoke: pathlib.Path, folder: pathlib.Path
) -> dict[str, str]:
    """Installs and checks; what happened, with the versions found.

    Args:
        row: the environment.
        wheel: of the package, or its source distribution.
        smoke: the smoke test.
        folder: where to make it; it is removed afterwards.
    """
    start = time.perf_counter()
    python = find_python(row.python)
    if python is None:
        return _result(
            row,
            f"not run: no Python {row.python} on the PATH, in pyenv or in uv; get it with "
            f"uv python install {row.python}",
        )
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        return _result(
            row,
            f"not run: {free / 1e9:.1f} GB free in {folder}, expected {_NEEDED_BYTES / 1e9:.0f}; "
            "free some, or name another place with --folder",
        )
    place = pathlib.Path(tempfile.mkdtemp(dir=folder))
    try:
        subprocess.run([python, "-m", "venv", str(place / "venv")], check=True)
        own = str(place / "venv" / "bin" / "python")
        wanted = row.requirements() + (lowest_requirements(row) if row.lowest else [])
        installing = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)]
        installed = _run([*installing, *wanted], place)
        if installed.returncode:
            return _result(row, f"not installable: {_error_in(installed.stderr)}")
        (place / "empty").mkdir()
        done = _run([own, str(smoke)], place / "empty")
        return _read(row, done, time.perf_counter() - start)
    except subprocess.TimeoutExpired:
        return _result(row, f"failed: it took more than {_SECONDS} s")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run(words: list[str], folder: pathlib.Path) -> "subprocess.CompletedProcess[str]":
    # The repository must not be imported in place of the wheel.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        words,
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=False,
    )


def _error_in(text: str) -> str:
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
    return errors[-1].removeprefix("ERROR:").strip() if errors else text.strip()[-200:]


def _read(row: Row, done: "subprocess.CompletedProcess[str]", seconds: float) -> dict[str, str]:
    """The outcome that the smoke test has printed last."""
    try:
        said = json.loads(done.stdout.strip().splitlines()[-1])
        versions, outcomes, failed = said["versions"], said["outcomes"], said["failed"]
    except (IndexError, ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return _result(row, f"failed: status {done.returncode}, {last}")
    names = failed or list(outcomes)
    text = "; ".join(f"{name}: {outcomes[name]}" for name in names)
    result = f"failed: {text}" if failed else "passed"
    return _result(row, result, versions, outcomes, f"{seconds:.0f}")


def _result(
    row: Row,
    result: str,
    versions: Mapping[str, str] | None = None,
    outcomes: Mapping[str, str] | None = None,
    seconds: str = "",
) -> dict[str, str]:
    # What was asked for where nothing is known of what was found.
    asked = dict(words.split("==") for words in row.requirements())
    found = versions or {"python": row.python, **asked}
    return {
        "row": row.name,
        **{name: found.get(name, "") for name in ("python", *_PACKAGES, "system")},
        "result": result,
        "details": "; ".join((outcomes or {}).values()),
        "seconds": seconds,
    }


def chosen(names: Iterable[str] | None) -> list[Row]:
    """The rows of these names; all where none are given.

    Raises:
        ValueError: there is no such row.
    """
    known = {row.name: row for row in TABLE}
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(f"--rows: received {unknown}, expected some of {', '.join(known)}.")
    return [known[name] for name in names or known]


def main(argv: list[str]) -> None:
    """Tries the rows, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    try:
        wanted = chosen(_ROWS.value)
    except ValueError as error:
        raise app.UsageError(str(error)) from error
    console = rich.console.Console()
    done = {row["row"]: row for row in rows.read_csv(_OUTPUT.value)}
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        place = pathlib.Path(folder)
        wheel, smoke = distribution(place), smoke_test(place)
        for row in wanted:
            done[row.name] = try_row(row, wheel, smoke, place)
            console.print(f"{row.name}: {done[row.name]['result']}", highlight=False, markup=False)
            ordered = [done[other.name] for other in TABLE if other.name in done]
            rows.write_csv(ordered, _OUTPUT.value)
    columns = ("row", "python", *_PACKAGES, "result")
    shown = [done[row.name] for row in wanted]
    console.print(rows.as_table(shown, "Versions", columns))
    sys.exit(any(row["result"] != "passed" for row in shown))


if __name__ == "__main__":
    app.run(main)
