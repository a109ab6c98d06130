"""Runs check.py of a proof kit, once it is the script that the kit was made with.

In a kit this is __main__.py, which `python kit.zip` runs. An emptied script would say nothing, and
end as if nothing differed. The bytes that are run are those that were hashed: another reader of the
zip, as an import of check is, may find other ones in a damaged one.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent  # a folder, or the zip itself


def whole_script() -> bytes | None:
    """The bytes of check.py; None unless they have the hash that stands in kit.json."""
    try:
        if HERE.is_dir():
            manifest, script = ((HERE / name).read_bytes() for name in ("kit.json", "check.py"))
        else:
            with zipfile.ZipFile(HERE) as kit:
                manifest, script = (kit.read(name) for name in ("kit.json", "check.py"))
        expected = json.loads(manifest)["files"]["check.py"]
    except Exception:  # zlib's, zipfile's, json's: whatever it is, the kit is damaged
        return None
    return script if expected == hashlib.sha256(script).hexdigest() else None


if __name__ == "__main__":
    script = whole_script()
    if script is None:
        print("error: check.py or kit.json is damaged; copy the kit again.", file=sys.stderr)
        sys.exit(2)
    __file__ = str(HERE / "check.py")
    exec(compile(script, __file__, "exec"))
