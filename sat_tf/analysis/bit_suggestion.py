"""Which layers should have more bits, from what each loses at few."""

import dataclasses
import glob
import math
from collections.abc import Mapping, Sequence

from sat_tf.analysis.damage import METRICS, Damage

MOST_BITS = 8


@dataclasses.dataclass(frozen=True)
class Share:
    """One number of bits of one layer, which can be raised to 8.

    Attributes:
        layer: its name.
        field: of `BitPolicy`: "weight_bits", "activation_bits" or "stream_bits".
        bits: what the policy gives it.
        size: how many numbers have these bits.
        damage: what they do to the model alone.
        errors: mean square error of these numbers at the policy's bits, one more, and so on to 8.
    """

    layer: str
    field: str
    bits: int
    size: int
    damage: Damage
    errors: tuple[float, ...] = ()

    def loss(self, metric: str, bits: int) -> float:
        """What it loses at some bits, by estimate, in units that can be added up.

        The squared distance and the divergence go with the power of the rounding error, and so, by
        assumption, do images lost. Where that is not known, it goes with the square of the step.
        """
        value = _value(self.damage, metric)
        power = value * value if METRICS[metric].is_root else value
        if not self.errors:
            return power * (_levels(self.bits) / _levels(bits)) ** 2
        first = self.errors[0]
        return power * self.errors[bits - self.bits] / first if first > 0.0 else 0.0


Bits = dict[Share, int]


def mean_bits(bits: Mapping[Share, int], field: str) -> float:
    """Mean bits of all numbers that a field is about; NaN where there are none."""
    own = [share for share in bits if share.field == field]
    size = sum(share.size for share in own)
    return sum(share.size * bits[share] for share in own) / size if size else math.nan


def within_average(shares: Sequence[Share], metric: str, average_bits: float) -> Bits:
    """The bits of each share with the least loss, by estimate, within a mean.

    Weights and activations each have the mean to themselves. One bit after the other goes to where
    it saves most for its cost; what no longer fits is passed over.

    Raises:
        ValueError: the policy's own mean is above it already.
    """
    bits = {share: share.bits for share in shares}
    # Nothing that can be counted tells apart layers that lose no image.
    metric = "divergence" if metric == "top1" else metric
    for field, what in (("weight_bits", "weights"), ("activation_bits", "activations")):
        own = [share for share in shares if share.field == field]
        mean = mean_bits(bits, field)
        if mean > average_bits and any(share.bits < MOST_BITS for share in own):
            raise ValueError(
                f"average_bits={average_bits:g}: received fewer bits than the {mean:.3f} that "
                f"{what} have in the mean under the measured policy, first and last layer "
                "included; expected more, or measure a policy with fewer bits, such as one with "
                "first_last_weight_bits=None."
            )
        room = sum(share.size * (average_bits - share.bits) for share in own)
        while able := [s for s in own if bits[s] < MOST_BITS and 0 < s.size <= room]:
            best = max(able, key=lambda share: _saved(share, metric, bits[share]) / share.size)
            if _saved(best, metric, bits[best]) <= 0.0:
                break
            bits[best] += 1
            room -= best.size
    return bits


def within_drop(shares: Sequence[Share], metric: str, max_drop: float, together: Damage) -> Bits:
    """The fewest layers raised to 8 bits so that no more is lost, by estimate.

    What the parts lose alone is added up, and the sum stretched so that all of them together lose
    what the quantized model was measured to lose.

    Raises:
        ValueError: 8 bits everywhere lose more.
    """
    bits = {share: share.bits for share in shares}
    measured = _value(together, metric)
    if measured <= max_drop:
        return bits
    # All images may be right with each layer quantized alone, and not with all of them.
    by = metric if any(_value(share.damage, metric) > 0.0 for share in shares) else "distance"
    whole = math.fsum(share.loss(by, share.bits) for share in shares)
    root = METRICS[metric].is_root

    def lost() -> float:
        part = math.fsum(share.loss(by, own) for share, own in bits.items()) / whole
        return measured * (math.sqrt(part) if root else part)

    def worth(share: Share) -> float:
        saved = share.loss(by, share.bits) - share.loss(by, MOST_BITS)
        return saved / (share.size or 1) / (MOST_BITS - share.bits)

    able = [share for share in shares if share.bits < MOST_BITS]
    for share in sorted(able, key=worth, reverse=True):
        if whole <= 0.0 or lost() <= max_drop:
            break
        bits[share] = MOST_BITS
    least = lost() if whole > 0.0 else measured
    if least > max_drop:
        factor, unit = METRICS[metric].unit
        raise ValueError(
            f"max_drop={max_drop:g}: received less than 8 bits everywhere lose by estimate, "
            f"{least:.3g}{f' ({factor * least:.3g} {unit})' if unit else ''}; expected at least "
            "that; leave layers float, or measure with more images."
        )
    return bits


def as_overrides(bits: Mapping[Share, int]) -> dict[str, dict[str, int]]:
    """What has more bits than the policy gives it, in the form of `BitPolicy.overrides`.

    >>> lost = Damage(top1_drop=None, distance=0.1, divergence=None)
    >>> as_overrides({Share("conv[1]", "weight_bits", 4, 9, lost): 8})
    {'conv[[]1]': {'weight_bits': 8}}
    """
    overrides: dict[str, dict[str, int]] = {}
    for share, own in bits.items():
        if own > share.bits:
            overrides.setdefault(glob.escape(share.layer), {})[share.field] = own
    return overrides


def _saved(share: Share, metric: str, bits: int) -> float:
    return share.loss(metric, bits) - share.loss(metric, bits + 1)


def _levels(bits: int) -> int:
    return int(2**bits - 1)


def _value(damage: Damage, metric: str) -> float:
    """Never below 0: that a layer gains an image by being quantized is chance."""
    return max(getattr(damage, METRICS[metric].field) or 0.0, 0.0)
