"""QIL: weights whose interval is learnt, as `sat_tf.quantizers.qil`."""

from collections.abc import Sequence
from typing import Any

from sat_tf.keras3.core import qil
from sat_tf.keras3.quantizers.protocol import Variables, VariableSpec
from sat_tf.keras3.quantizers.scaled import ScaledWithSurrogate, known
from sat_tf.quantizers.constructors import OfQil
from sat_tf.quantizers.settings import (
    CENTER,
    DISTANCE,
    SMALLEST_DISTANCE,
    usual_half_interval,
)


class QilQuantizer(OfQil, ScaledWithSurrogate):
    """Weights with an interval that is learnt: `qil.quantize_weights` (Jung et al. 2019).

    The trainable variables `interval_center`, 0 or above, and `interval_distance`, which is
    positive, are for the layer or for each channel.
    """

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """The trainable interval, where it rounds, and the gain of a rescaling."""
        made = super().variables(shape)
        if self.num_bits is None:
            return made
        half = usual_half_interval(known(shape))
        interval = {
            name: self.learnt(shape, start=half, lowest=lowest)
            for name, lowest in ((CENTER, 0.0), (DISTANCE, SMALLEST_DISTANCE))
        }
        return {**made, **interval}

    def quantized(self, latent: Any, variables: Variables, num_bits: int) -> Any:
        """`qil.quantize_weights`."""
        return qil.quantize_weights(
            latent,
            variables[CENTER],
            variables[DISTANCE],
            num_bits,
            gradient_factor=self.gradient_factor,
            **self.passed_back,
        )
