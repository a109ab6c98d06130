"""Weights that share values, as `sat_tf.quantizers.kmeans`."""

from collections.abc import Sequence
from typing import Any, ClassVar

from keras import ops

from sat_tf.keras3.core import kmeans
from sat_tf.keras3.quantizers.scaled import LevelsOfWeights
from sat_tf.quantizers.clusters import known_initialization
from sat_tf.quantizers.settings import true_or_false


class KMeansQuantizer(LevelsOfWeights):
    """Weights of a layer with 2^b shared values: `kmeans.quantize_weights` (Han et al. 2016).

    The variable `cluster_ids`, uint8 and shaped like the kernel, holds which of them share a value,
    as found when a tf_keras model is quantized.

    Args:
        num_bits: 1 to 8, or None to not round.
        rescale: see `ScaledQuantizer`.
        fan_out: see there.
        initialization: where centroids start, a row of `clusters.INITIALIZATIONS`.
        keep_zeros: weights that are 0 stay 0; one of the values is 0.
        reassign: weights move to the nearest cluster in every training step. Each has its own
            gradient then.
    """

    levels_name: ClassVar[str] = "cluster_ids"
    levels_type: ClassVar[str] = "uint8"

    def __init__(
        self,
        *,
        num_bits: int | None,
        rescale: str | None = None,
        fan_out: int = 1,
        initialization: str = "linear",
        keep_zeros: bool = False,
        reassign: bool = False,
    ) -> None:
        super().__init__(num_bits=num_bits, rescale=rescale, fan_out=fan_out)
        self.initialization = known_initialization(initialization)
        self.keep_zeros = true_or_false("keep_zeros", keep_zeros)
        self.reassign = true_or_false("reassign", reassign)

    @property
    def bits(self) -> int:
        """Those of the clusters, of one that rounds."""
        return self.num_bits or 0

    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        """That of the kernel."""
        return kernel_shape

    def values(self, latent: Any, levels: Any) -> Any:
        """`kmeans.quantize_weights`."""
        return kmeans.quantize_weights(
            latent, levels, self.bits, keep_zeros=self.keep_zeros, each=self.reassign
        )

    @property
    def follows(self) -> bool:
        """Whether weights may move."""
        return self.reassign

    def next_levels(self, latent: Any, levels: Any) -> Any:
        """The nearest clusters."""
        found = kmeans.nearest_ids(latent, levels, self.bits, keep_zeros=self.keep_zeros)
        return ops.cast(found, self.levels_type)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "rescale": self.rescale,
            "fan_out": self.fan_out,
            "initialization": self.initialization,
            "keep_zeros": self.keep_zeros,
            "reassign": self.reassign,
        }
