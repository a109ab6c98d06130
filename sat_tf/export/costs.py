"""What each way to store kernels costs: bytes, bytes after gzip, and time."""

import dataclasses
import time
from collections.abc import Mapping

import numpy as np

from sat_tf.export.file_size import gzip_size
from sat_tf.export.runtime import Runtime

_WARM_UP = 2
_RUNS = 20
# No network takes longer, and slow ones need fewer runs.
_LONGEST_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class StorageCost:
    """A file as one choice of `pack` stores it.

    Attributes:
        pack: the choice.
        bytes: the file's size.
        gzip_bytes: its size after gzip, as app stores compress it.
        milliseconds: time for one image on this machine, with XNNPACK and one thread: the median
            of runs that alternate between the choices; None where it was not asked for.
    """

    pack: str
    bytes: int
    gzip_bytes: int
    milliseconds: float | None = None

    def __str__(self) -> str:
        time_taken = "" if self.milliseconds is None else f", {self.milliseconds:.2f} ms an image"
        return f"pack={self.pack}: {self.bytes:,} bytes, {self.gzip_bytes:,} after gzip{time_taken}"


def storage_costs(
    contents: Mapping[str, bytes], *image_shapes: tuple[int, ...], measure_speed: bool
) -> list[StorageCost]:
    """The cost of each file of a model.

    Args:
        contents: files by their choice of `pack`.
        *image_shapes: of one image, for each input.
        measure_speed: run them.
    """
    latencies = median_milliseconds(contents, *image_shapes) if measure_speed else {}
    return [
        StorageCost(pack, len(content), gzip_size(content), latencies.get(pack))
        for pack, content in contents.items()
    ]


def median_milliseconds(
    contents: Mapping[str, bytes], *image_shapes: tuple[int, ...]
) -> dict[str, float]:
    """Time for one image, by the names of files: medians of runs that take turns.

    Whatever else the machine does slows all files alike.
    """
    runtimes = {name: Runtime(content, keep_tensors=False) for name, content in contents.items()}
    image = next(iter(runtimes.values())).zeros(image_shapes)
    taken: dict[str, list[float]] = {name: [] for name in runtimes}
    start = time.perf_counter()
    for _ in range(_WARM_UP + _RUNS):
        for name, runtime in runtimes.items():
            before = time.perf_counter()
            runtime.run(image)
            taken[name].append(1000.0 * (time.perf_counter() - before))
        if time.perf_counter() - start > _LONGEST_SECONDS:
            break
    # The first runs fill caches, unless there are no others.
    return {name: float(np.median(times[_WARM_UP:] or times)) for name, times in taken.items()}
