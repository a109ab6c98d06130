"""Proves, on the machine it runs on, that LiteRT computes the codes of a TFLite file.

Unzip the kit and run `python check.py`, or run `python kit.zip`. It needs Python 3.9, NumPy and
ai-edge-litert. Every tensor that LiteRT computes is compared with the hashes in the kit; the
outcome is printed, and written into the working directory as a certificate of this machine, which
`sat-tf verify model.tflite --certificate` reads.

Exit status: 0 if nothing differs, 1 if anything does, 2 if the kit or the installation is bad.
"""

from __future__ import annotations

import faulthandler
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import statistics
import struct
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from importlib import metadata
from typing import Any

try:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter
except ImportError as lacking:
    MISSING = str(lacking)
else:
    MISSING = ""

HERE = pathlib.Path(__file__).resolve().parent  # a folder, or the zip itself
# XNNPACK chooses its kernels for codes by these features.
FEATURES = "neon asimd asimddp i8mm sve sve2 sme sme2 ssse3 avx avx2 avx512bw avx_vnni avx512_vnni"
TIMED_RUNS, TIMED_SECONDS, MOST_LISTED = 30, 5.0, 10


class UnusableError(Exception):
    """The kit or the installation is bad; the message says what to do."""


def sha256(content: bytes) -> str:
    """Returns the hash of some bytes."""
    return hashlib.sha256(content).hexdigest()


def seal(values: dict[str, Any]) -> str:
    """Returns the hash of a dictionary without its seal."""
    unsealed = {name: value for name, value in values.items() if name != "seal"}
    return sha256(json.dumps(unsealed, sort_keys=True).encode())


def read(name: str) -> bytes:
    """Reads a file of the kit."""
    try:
        if HERE.is_dir():
            return (HERE / name).read_bytes()
        with zipfile.ZipFile(HERE) as kit:
            return kit.read(name)
    except (OSError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UnusableError(f"{name} cannot be read ({error}); copy the kit again.") from error


def open_kit() -> dict[str, Any]:
    """Returns the content of kit.json, once every file has the hash that it says."""
    try:
        kit: dict[str, Any] = json.loads(read("kit.json"))
        changed = [] if kit["seal"] == seal(kit) else ["kit.json"]
        for name, digest in kit["files"].items():
            # A kit has no names that lead out of it.
            if not re.fullmatch(r"\w[\w.]*(/\d+)?", name) or sha256(read(name)) != digest:
                changed.append(name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableError(f"kit.json is damaged ({error!r}); copy the kit again.") from error
    if changed:
        raise UnusableError(f"the kit was changed in {', '.join(changed)}; copy it again.")
    return kit


def load(content: bytes, wanted: str, *, keep_tensors: bool) -> tuple[Any, str]:
    """Loads the file in LiteRT with one thread; returns it, and LiteRT's messages."""
    with tempfile.TemporaryFile() as log:
        screen = os.dup(2)
        os.dup2(log.fileno(), 2)  # LiteRT itself writes there which delegate it has made
        try:
            interpreter = Interpreter(
                model_content=content, num_threads=1, experimental_preserve_all_tensors=keep_tensors
            )
            interpreter.allocate_tensors()
        except (RuntimeError, ValueError, TypeError) as error:
            raise UnusableError(
                f"ai-edge-litert {metadata.version('ai-edge-litert')} does not load the file, "
                f"which is for {wanted} ({error}): pip install ai-edge-litert=={wanted}"
            ) from error
        finally:
            os.dup2(screen, 2)
            os.close(screen)
        log.seek(0)
        return interpreter, log.read().decode(errors="replace")


def run(interpreter: Any, arrays: Any) -> tuple[list[Any], float]:
    """Returns the outputs for an image, in arrays of all inputs, and the milliseconds it took."""
    interpreter.reset_all_variables()  # of an LSTM, which begins again with each image
    for detail, array in zip(interpreter.get_input_details(), arrays):
        interpreter.set_tensor(detail["index"], array[np.newaxis])
    start = time.perf_counter()
    interpreter.invoke()
    elapsed = 1000 * (time.perf_counter() - start)
    details = interpreter.get_output_details()
    return [interpreter.get_tensor(detail["index"]) for detail in details], elapsed


def compare(kit: dict[str, Any], keeping: Any, plain: Any, images: Any) -> tuple[list[Any], int]:
    """Returns a row for each tensor, and how many outputs differ where no tensors are kept."""
    places = {detail["name"]: detail["index"] for detail in keeping.get_tensor_details()}
    rows: list[Any] = [
        {"name": tensor["name"], "codes_compared": 0, "codes_differing": 0, "images": []}
        for tensor in kit["tensors"]
    ]
    hashes, outputs_differing = [hashlib.sha256() for _ in rows], 0
    for number, image in enumerate(images):
        outputs, kept = run(plain, image)[0], run(keeping, image)[0]
        if not kit["not_compared"]:  # without kept tensors, float layers may run in other pieces
            outputs_differing += sum(int(np.count_nonzero(x != y)) for x, y in zip(outputs, kept))
        codes = read(f"codes/{number}") if kit["has_codes"] else b""
        for row, tensor, over_all in zip(rows, kit["tensors"], hashes):
            computed = keeping.get_tensor(places[row["name"]]).reshape(-1)
            if computed.dtype != np.int16:
                computed = computed.astype(np.int8)
            content = computed.tobytes()
            expected, codes = codes[: len(content)], codes[len(content) :]
            over_all.update(content)
            row["codes_compared"] += computed.size
            if sha256(content) != tensor["images"][number]:
                row["images"].append(number)
                if kit["has_codes"]:
                    differs = computed != np.frombuffer(expected, computed.dtype)
                    row["codes_differing"] += int(np.count_nonzero(differs))
    for row, over_all in zip(rows, hashes):
        row["sha256"] = over_all.hexdigest()
        if row["images"] and not kit["has_codes"]:
            row["codes_differing"] = None  # some do: only a kit with codes tells how many
    return rows, outputs_differing


def milliseconds(plain: Any, images: Any) -> float:
    """Returns the median time of an image."""
    times: list[float] = []
    end = time.perf_counter() + TIMED_SECONDS
    while len(times) < TIMED_RUNS and (not times or time.perf_counter() < end):
        times.append(run(plain, images[len(times) % len(images)])[1])
    return statistics.median(times)


def system_file(path: str) -> str:
    """Reads a small file of the system; empty if there is no such file."""
    try:
        return pathlib.Path(path).read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def machine(plain: Any, log: str) -> dict[str, Any]:
    """Returns the processor, its `FEATURES`, the versions, and the delegate."""
    fields = dict(re.findall(r"^([^:\n]*?)\s*:[ \t]*(.*)$", system_file("/proc/cpuinfo"), re.M))
    has = (fields.get("Features") or fields.get("flags") or "").split()
    cpu_part = " ".join(fields[name] for name in ("CPU implementer", "CPU part") if name in fields)
    board = system_file("/proc/device-tree/model") or fields.get("model name") or cpu_part
    delegated = any(node["op_name"] == "DELEGATE" for node in plain._get_ops_details())
    names = ", ".join(re.findall(r"Created TensorFlow Lite (\w+) delegate", log)) or "unnamed"
    return {
        "machine": platform.machine(),
        "processor": board or platform.processor() or "unknown",
        "features": [name for name in FEATURES.split() if name in has],
        "versions": {
            "system": " ".join(filter(None, (platform.system(), *platform.libc_ver()))),
            "python": f"{platform.python_version()}, {8 * struct.calcsize('P')} bits",
            "numpy": np.__version__,
            "ai-edge-litert": metadata.version("ai-edge-litert"),
        },
        "delegate": names if delegated else "none",
    }


def write(certificate: dict[str, Any]) -> str:
    """Writes the certificate into the working directory, whole or not at all."""
    path = f"certificate_{re.sub(r'[^A-Za-z0-9]+', '_', platform.machine())}.json"
    partial = f".{os.getpid()}_{path}"
    try:
        pathlib.Path(partial).write_text(json.dumps(certificate, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise UnusableError(f"{path}: {error.strerror}; run this in another folder.") from error
    finally:
        if os.path.exists(partial):
            os.remove(partial)
    return path


def show(kit: dict[str, Any], device: dict[str, Any], rows: list[Any]) -> None:
    """Prints the machine, and the tensors that differ."""
    versions = device["versions"]
    print(f"file       {kit['file']}, {len(rows)} tensors, {kit['num_images']} images")
    print(f"machine    {device['machine']}: {device['processor']}")
    print(f"features   {' '.join(device['features']) or 'unknown'}")
    print(f"versions   {', '.join(f'{name} {version}' for name, version in versions.items())}")
    print(f"delegate   {device['delegate']}")
    print(f"time       {device['milliseconds']:.3g} ms an image, one thread")
    if device["delegate"] != "XNNPACK":
        print(f"WARNING    the delegate is {device['delegate']}; the file is exact with XNNPACK")
    if versions["ai-edge-litert"] != kit["litert"]:
        print(f"note       the kit was made with ai-edge-litert {kit['litert']}")
    if kit["not_compared"]:
        print(f"note       {len(kit['not_compared'])} tensors after float layers not compared")
    if device["outputs_differing"]:
        print(f"DIFFERS    {device['outputs_differing']} outputs where no tensors are kept")
    differing = [row for row in rows if row["images"]]
    for row in differing[:MOST_LISTED]:
        codes = "some" if row["codes_differing"] is None else f"{row['codes_differing']:,}"
        print(
            f"DIFFERS    {row['name']}: {codes} of {row['codes_compared']:,} codes, in "
            f"{len(row['images'])} images, first in number {row['images'][0]}"
        )
    compared = sum(row["codes_compared"] for row in rows)
    ending = f"; the first is {differing[0]['name']}" if differing else ""
    print(f"{len(differing)} of {len(rows)} tensors differ ({compared:,} codes compared){ending}")


def main() -> int:
    """Checks the machine; returns the exit status."""
    if sys.argv[1:]:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    kit = open_kit()
    if MISSING:
        raise UnusableError(f"{MISSING}: pip install numpy ai-edge-litert=={kit['litert']}")
    warnings.filterwarnings("ignore", message=".*experimental_preserve_all_tensors.*")
    content, version = read("model.tflite"), kit["litert"]
    plain, log = load(content, version, keep_tensors=False)
    keeping, _ = load(content, version, keep_tensors=True)
    names = [name for name in kit["files"] if name.startswith("images")]
    arrays = [np.load(io.BytesIO(read(name)), allow_pickle=False) for name in names]
    images = list(zip(*arrays))
    rows, outputs_differing = compare(kit, keeping, plain, images)
    device = machine(plain, log)
    device.update(outputs_differing=outputs_differing, milliseconds=milliseconds(plain, images))
    certificate = {"format": kit["format"], "kit": kit, "device": device, "tensors": rows}
    certificate["seal"] = seal(certificate)
    path = write(certificate)
    show(kit, device, rows)
    print(f"written to {path}")
    return int(outputs_differing > 0 or any(row["images"] for row in rows))


def start() -> None:
    """Runs check.py of a proof kit, once it is the script that the kit was made with.

    This function alone is the kit's __main__.py, which `python kit.zip` runs. An emptied script
    would say nothing, and end as if nothing differed. The bytes that are run are those that were
    hashed: another reader of the zip, such as an import of check, may find other bytes in a damaged
    zip.
    """
    import hashlib
    import json
    import pathlib
    import sys
    import zipfile

    here = pathlib.Path(__file__).resolve().parent  # a folder, or the zip itself
    try:
        place = here if here.is_dir() else zipfile.Path(here)
        manifest, script = ((place / name).read_bytes() for name in ("kit.json", "check.py"))
        is_whole = json.loads(manifest)["files"]["check.py"] == hashlib.sha256(script).hexdigest()
    except Exception:  # zlib's, zipfile's, json's: whatever it is, the kit is damaged
        is_whole = False
    if not is_whole:
        print("error: check.py or kit.json is damaged; copy the kit again.", file=sys.stderr)
        sys.exit(2)
    path = str(here / "check.py")
    exec(compile(script, path, "exec"), {"__name__": "__main__", "__file__": path})


if __name__ == "__main__":
    faulthandler.enable()  # says where LiteRT crashes
    try:
        sys.exit(main())
    except UnusableError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; no certificate was written", file=sys.stderr)
        sys.exit(130)
