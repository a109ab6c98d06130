"""Which part of every global batch falls to whom."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """The place of one process among those that train together.

    Every global batch is cut into one piece for each replica of each process, in order; where it
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

        >>> Share(worker=0, workers=2, replicas=1).pieces(33)
        [(0, 17)]
        >>> Share(worker=1, workers=2, replicas=2).pieces(10)
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

        >>> Share(worker=1, workers=2, replicas=2).span(10)
        (6, 4)
        """
        pieces = self.pieces(batch_size)
        return pieces[0][0], sum(size for _, size in pieces)
