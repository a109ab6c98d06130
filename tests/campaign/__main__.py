"""Plays one case again and keeps its folder: `python -m tests.campaign tflite 123`."""

import pathlib
import sys
import tempfile

from tests.campaign.kinds import play
from tests.campaign.originals import prepare

if __name__ == "__main__":
    kind, seed = sys.argv[1], int(sys.argv[2])
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{kind}-{seed}-"))
    prepare(folder.parent / "sat-tf-campaign")
    verdict = play(kind, seed, folder)
    print(f"{verdict.name}: {verdict.text}\n{folder}")
