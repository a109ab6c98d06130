"""How many weights change their code from one step to the next."""

import tensorflow as tf

from sat_tf.analysis.as_graph import as_graph
from sat_tf.analysis.weight_use import WeightProbe


class CodeFlips:
    """Compares the codes of a model's weights with those of an earlier step.

    Args:
        weights: measures the kernels of the model.
    """

    def __init__(self, weights: WeightProbe) -> None:
        self._codes = as_graph(weights.codes)
        self._share = as_graph(_shares)
        self._before: dict[str, tf.Tensor] = {}
        self._at_last_measurement: dict[str, tf.Tensor] = {}

    def remember(self) -> None:
        """Keeps the codes as they are, to be compared with those of the next step."""
        self._before = self._codes()

    def measure(self) -> tuple[dict[str, float], dict[str, float]]:
        """Shares of weights that have another code than at some step, by layer.

        Returns:
            Than when `remember` was called, and than when `measure` was called before; both empty
            where that has not happened, or nothing has codes.
        """
        now = self._codes()
        flipped, moved = (
            {name: float(share) for name, share in self._share(earlier, now).items()}
            if earlier
            else {}
            for earlier in (self._before, self._at_last_measurement)
        )
        self._before, self._at_last_measurement = {}, now
        return flipped, moved


def _shares(earlier: dict[str, tf.Tensor], now: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {
        name: tf.reduce_mean(tf.cast(tf.not_equal(codes, now[name]), tf.float32))
        for name, codes in earlier.items()
    }
