"""Weights that share values, those of Deep Compression."""

from typing import Any, ClassVar

import tensorflow as tf

from sat_tf.core import kmeans
from sat_tf.quantizers.clusters import cluster_ids
from sat_tf.quantizers.constructors import OfKMeans
from sat_tf.quantizers.protocol import Variables, WeightRequest, register_quantizer
from sat_tf.quantizers.scaled import LevelsOfWeights


@register_quantizer
class KMeansQuantizer(OfKMeans, LevelsOfWeights):
    """Weights of a layer with 2^b shared values: `kmeans.quantize_weights` (Han et al. 2016).

    The variable `cluster_ids`, uint8 and shaped like the kernel, holds which of them share a value.
    k-means over the layer finds that when a model is quantized, and when it gets other bits.

    Args:
        num_bits: 1 to 8, or None to not round.
        rescale: see `ScaledQuantizer`.
        fan_out: see there.
        initialization: where centroids start, a row of `clusters.INITIALIZATIONS`.
        keep_zeros: weights that are 0 stay 0, as those of a pruned model; one of the values is 0.
        reassign: weights move to the nearest cluster in every training step. Each has its own
            gradient then; those of a cluster that share one would keep their distances for ever.
    """

    method: ClassVar[str] = "k-means"
    zeros_stay_with: ClassVar[str] = "weight_options={'keep_zeros': True}"
    levels_name: ClassVar[str] = "cluster_ids"
    levels_type: ClassVar[tf.DType] = tf.uint8
    levels_settings: ClassVar[tuple[str, ...]] = ("num_bits", "initialization", "keep_zeros")

    @classmethod
    def asked(cls, request: WeightRequest) -> dict[str, Any]:
        """What it takes of a request."""
        # Channels of a layer share its values.
        return {name: value for name, value in super().asked(request).items() if "axes" not in name}

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return ("initialization", "keep_zeros", "reassign")

    def levels_shape(self, kernel_shape: Any) -> Any:
        """That of the kernel."""
        return kernel_shape

    def first_levels(self, kernel: tf.Tensor) -> tf.Tensor:
        """The clusters of `cluster_ids`."""
        settings: dict[str, Any] = {
            "initialization": self.initialization,
            "keep_zeros": self.keep_zeros,
        }
        return tf.constant(cluster_ids(kernel.numpy(), self.bits, **settings))

    def values(self, latent: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """`kmeans.quantize_weights`."""
        return kmeans.quantize_weights(
            latent, levels, self.bits, keep_zeros=self.keep_zeros, each=self.reassign
        )

    def next_levels(self, latent: tf.Tensor, levels: tf.Tensor) -> tf.Tensor | None:
        """The nearest clusters, where weights may move."""
        if not self.reassign:
            return None
        found = kmeans.nearest_ids(latent, levels, self.bits, keep_zeros=self.keep_zeros)
        return tf.cast(found, tf.uint8)

    def codes_and_scales(
        self, latent: tf.Tensor, variables: Variables
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`kmeans.weight_codes`."""
        codes, scale = kmeans.weight_codes(
            latent, variables[self.levels_name], self.bits, keep_zeros=self.keep_zeros
        )
        return codes, tf.reshape(scale, [1] * codes.shape.rank)

    @property
    def holds_zero(self) -> bool:
        """Whether a weight of 0 stays 0."""
        return self.num_bits is None or self.keep_zeros

    def units(self, latent: tf.Tensor, variables: Variables) -> tf.Tensor:
        """The clusters, of which those with the same code are one."""
        return kmeans.weight_units(
            latent, variables[self.levels_name], self.bits, keep_zeros=self.keep_zeros
        )

    def describe(self) -> str:
        """One line for people."""
        bits = "not rounded"
        if self.num_bits is not None:
            bits = f"of {self.num_bits} bits, {2**self.num_bits} values per layer"
        rescaled = f"{self.rescale} rescale" if self.rescale else "no rescale"
        line = f"{self.method} weights {bits}, {rescaled}, {self.initialization} initialization"
        zeros = ", zeros kept" if self.keep_zeros else ""
        return line + zeros + (", weights move between clusters" if self.reassign else "")
