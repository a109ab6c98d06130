"""Evenly spread samples of a set, and the shard of every batch that a process computes."""

import dataclasses

import numpy as np
import numpy.typing as npt


def spread_evenly(count: int, most: int | None) -> npt.NDArray[np.int64]:
    """Indices of at most `most` of `count` images, spread evenly; None chooses all.

    >>> spread_evenly(9, 3).tolist(), spread_evenly(2, 3).tolist(), spread_evenly(0, 3).tolist()
    ([0, 4, 8], [0, 1], [])
    """
    chosen = count if most is None else min(most, count)
    return np.unique(np.linspace(0, max(count - 1, 0), chosen).round().astype(np.int64))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """The place of one process among those that train together.

    Every global batch is cut into one piece for each replica of each process, in order; if it
    cannot be cut evenly, the first pieces are one image longer.

    Attributes:
        worker: number of this process, from 0.
        workers: how many processes there are.
        replicas: how many devices each of them has.
    """

    worker: int = 0
    workers: int = 1
    replicas: int = 1

    def pieces(self, batch_size: int) -> list[tuple[int, int]]:
        """First image and number of images of each piece of this process, replica by replica.

        >>> Shard(worker=0, workers=2, replicas=1).pieces(33)
        [(0, 17)]
        >>> Shard(worker=1, workers=2, replicas=2).pieces(10)
        [(6, 2), (8, 2)]
        """
        count = self.workers * self.replicas
        size, longer = divmod(batch_size, count)
        numbers = range(self.worker * self.replicas, (self.worker + 1) * self.replicas)
        return [
            (number * size + min(number, longer), size + (number < longer)) for number in numbers
        ]

    def span(self, batch_size: int) -> tuple[int, int]:
        """First image and number of images of this process in a global batch.

        >>> Shard(worker=1, workers=2, replicas=2).span(10)
        (6, 4)
        """
        pieces = self.pieces(batch_size)
        return pieces[0][0], sum(size for _, size in pieces)
