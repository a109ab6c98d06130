"""Weights that share values, as `sat_tf.quantizers.kmeans`."""

from collections.abc import Sequence
from typing import Any, ClassVar

from keras import ops

from sat_tf.keras3.core import kmeans
from sat_tf.keras3.quantizers.scaled import LevelsOfWeights
from sat_tf.quantizers.constructors import OfKMeans


class KMeansQuantizer(OfKMeans, LevelsOfWeights):
    """Weights of a layer with 2^b shared values: `kmeans.quantize_weights` (Han et al. 2016).

    The variable `cluster_ids`, uint8 and shaped like the kernel, holds which of them share a value,
    as found when a tf_keras model is quantized.
    """

    levels_name: ClassVar[str] = "cluster_ids"
    levels_type: ClassVar[str] = "uint8"

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
