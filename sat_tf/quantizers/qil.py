"""QIL: weights whose interval is learnt."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from sat_tf.arguments import is_number
from sat_tf.core import qil
from sat_tf.core.grid import FEWEST_SIGNED_BITS, Bits
from sat_tf.core.qil import qil_largest_code
from sat_tf.core.tensors import Tensor, in_float32, namespace
from sat_tf.quantizers.protocol import Predecessor, VariableSpec
from sat_tf.quantizers.scaled import ScaledWithSurrogate
from sat_tf.quantizers.settings import known_sizes, usual_deviation
from sat_tf.quantizers.values import Variables

CENTER, DISTANCE = "interval_center", "interval_distance"
# No distance is shorter: what is divided by it stays finite.
SMALLEST_DISTANCE = 1e-8


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class QilQuantizer(ScaledWithSurrogate):
    """Weights with an interval that is learnt: `qil.quantize_weights` (Jung et al. 2019).

    The trainable variables `interval_center` and `interval_distance`, for the layer or for each
    channel, start at c = d = max|w| / 2, which prunes and clips nothing. c is kept at 0 or above,
    d positive; they have no weight decay.

    Args:
        gradient_factor: of the gradients of c and d, which are sums over all weights.
        **settings: those of `ScaledWithSurrogate`.
    """

    method: ClassVar[str] = "QIL"
    fewest_bits: ClassVar[int] = FEWEST_SIGNED_BITS

    gradient_factor: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_bits is not None:
            qil_largest_code(self.num_bits)
        factor = self.gradient_factor
        if not is_number(factor) or not 0 <= factor < math.inf:
            raise ValueError(
                f"gradient_factor={factor!r}: expected a number of 0 or more, as 0.01."
            )
        self.gradient_factor = float(factor)

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """The gain of a rescaling, and the trainable interval, where it rounds."""
        made = super().variables(shape)
        if self.num_bits is None:
            return made
        # Three deviations of a usual kernel, until `begin` sees this one.
        half = 1.5 * usual_deviation(known_sizes(shape))
        interval = {
            name: self.learnt(shape, start=half, lowest=lowest)
            for name, lowest in ((CENTER, 0.0), (DISTANCE, SMALLEST_DISTANCE))
        }
        return {**made, **interval}

    def begin(self, kernel: Any, variables: Variables) -> None:
        """Lets the interval go from 0 to the largest latent weight.

        That of a channel of zeros goes to the largest weight of its layer. Where the whole layer is
        zero, it stays as it was made.
        """
        if CENTER not in variables:
            return
        n = namespace(kernel)
        latent = in_float32(n, kernel)
        own = qil.first_end(latent, range_axes=self.range_axes) / 2.0
        of_layer = qil.first_end(latent) / 2.0
        for variable in (variables[CENTER], variables[DISTANCE]):
            usual = n.where(of_layer >= SMALLEST_DISTANCE, of_layer, n.tensor(variable))
            variable.assign(n.where(own >= SMALLEST_DISTANCE, own, usual))

    def carry(self, latent: Tensor, variables: Variables, before: Predecessor) -> None:
        """Takes over the gain and the interval, but for one of other ranges.

        See `WeightQuantizer.carry`.
        """
        super().carry(latent, variables, before)
        if CENTER not in variables or not isinstance(before.quantizer, QilQuantizer):
            return
        old = before.variables.get(CENTER)
        if old is None or old.shape != variables[CENTER].shape:
            self.begin(latent, variables)

    def quantized(self, latent: Tensor, variables: Variables, num_bits: Bits) -> Tensor:
        """`qil.quantize_weights`."""
        return qil.quantize_weights(
            latent,
            variables[CENTER],
            variables[DISTANCE],
            num_bits,
            gradient_factor=self.gradient_factor,
            **self.passed_back,
        )

    def codes_and_scales(self, latent: Tensor, variables: Variables) -> tuple[Tensor, Tensor]:
        """`qil.weight_codes` and `qil.weight_scale`."""
        interval = variables[CENTER], variables[DISTANCE]
        codes = qil.weight_codes(latent, *interval, self.bits)
        return codes, self.per_range(qil.weight_scale(*interval, self.bits), codes)

    @property
    def largest_code(self) -> int:
        """2^(b-1) - 1."""
        return qil_largest_code(self.bits)
