"""How much the outputs of two networks differ: top-1, distance and divergence."""

import dataclasses
import math

import numpy as np

from sat_tf.top_k import top_hits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """The effect of quantization on a model's outputs; what was not measured is None.

    Attributes:
        top1_drop: share of the images, 0 to 1, by which top-1 falls; negative if it rises.
        distance: relative error of the outputs, |y' - y| / |y|, Euclidean norms over all images.
        divergence: Kullback-Leibler divergence of the class probabilities from the float model's,
            in nats, its mean over the images; None if nothing says that the output is a row
            of classes.
    """

    top1_drop: float | None
    distance: float
    divergence: float | None


@dataclasses.dataclass(frozen=True)
class Metric:
    """One measure of what a layer loses.

    Attributes:
        field: of `Damage`.
        title: for readers.
        unit: factor and symbol of the unit it is shown in.
        is_root: its square is proportional to the power of the noise.
    """

    field: str
    title: str
    unit: tuple[float, str]
    is_root: bool = False


METRICS = {
    "top1": Metric("top1_drop", "top-1 lost", (100.0, "points")),
    "distance": Metric("distance", "relative error of the output", (1.0, ""), is_root=True),
    "divergence": Metric("divergence", "divergence of the classes", (1.0, "nats")),
}


class DamageMeter:
    """Accumulates the damage over batches of outputs, compared with the float model's.

    Args:
        probabilities: the outputs are probabilities, not logits.
        classes: the outputs are a row of classes.
    """

    def __init__(self, *, probabilities: bool, classes: bool) -> None:
        self._probabilities = probabilities
        self._has_classes = classes
        self._count = 0
        self._fewer_right = 0
        self._has_labels = False
        self._error = self._size = self._divergence = 0.0

    def add(self, own: np.ndarray, reference: np.ndarray, labels: np.ndarray | None) -> None:
        """Adds one batch of outputs, the float model's, and the classes of the images."""
        own, reference = own.astype(np.float64), reference.astype(np.float64)
        self._count += len(own)
        self._error += float(np.sum(np.square(own - reference)))
        self._size += float(np.sum(np.square(reference)))
        if self._has_classes:
            wanted = self._log_shares(reference)
            terms = np.exp(wanted) * (wanted - self._log_shares(own))
            self._divergence += float(np.sum(terms))
            if labels is not None:
                self._has_labels = True
                self._fewer_right += top_hits(reference, labels, 1) - top_hits(own, labels, 1)

    def damage(self) -> Damage:
        """The damage over all batches."""
        size = self._error / self._size if self._size else (math.inf if self._error else 0.0)
        return Damage(
            top1_drop=self._fewer_right / self._count if self._has_labels else None,
            distance=math.sqrt(size),
            divergence=max(self._divergence / self._count, 0.0) if self._has_classes else None,
        )

    def _log_shares(self, outputs: np.ndarray) -> np.ndarray:
        if self._probabilities:
            # A float32 softmax gives 0 below this.
            return np.log(np.maximum(outputs, float(np.finfo(np.float32).tiny)))
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
