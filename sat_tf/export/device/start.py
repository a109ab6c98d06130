"""Runs check.py of a proof kit, once it is the script that the kit was made with.

In a kit this is __main__.py, which `python kit.zip` runs. An emptied script would say nothing, and
end as if nothing differed.
"""

import hashlib
import json
import pathlib
import runpy
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent  # a folder, or the zip itself


def is_whole() -> bool:
    """Whether check.py has the hash that stands in kit.json."""
    try:
        if HERE.is_dir():
            manifest, script = ((HERE / name).read_bytes() for name in ("kit.json", "check.py"))
        else:
            with zipfile.ZipFile(HERE) as kit:
                manifest, script = (kit.read(name) for name in ("kit.json", "check.py"))
        expected = json.loads(manifest)["files"]["check.py"]
    except Exception:  # zlib's, zipfile's, json's: whatever it is, the kit is damaged
        return False
    return bool(expected == hashlib.sha256(script).hexdigest())


if __name__ == "__main__":
    if not is_whole():
        print("error: check.py or kit.json is damaged; copy the kit again.", file=sys.stderr)
        sys.exit(2)
    runpy.run_module("check", run_name="__main__")
