"""The bits of each layer, chosen within a budget: the result, as tables."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import yaml

from sat_tf.analysis.allocation.budget import LIMITS, Solution
from sat_tf.files import write_text
from sat_tf.messages import did_you_mean
from sat_tf.messages.tables import Column, RowTable, Table, digits
from sat_tf.qat.policy import BitPolicy

_NONE = "-"
# Narrower terminals have no columns for the kind and the ties; the CSV has them.
_WIDE = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatedLayer:
    """The bits of one linear layer, and their bytes, time and cost."""

    name: str  # The layer's name.
    kind: str  # Its class.
    weight_bits: int | None  # Bits of its kernel; None if that is not rounded.
    activation_bits: int | None  # Bits of its input; None if that is float.
    chosen: str  # The chosen bits: "both", "weights", "activations" or "neither".
    tied: str  # The other layers that read the same grid, with commas between them.
    num_weights: int  # The number of weights in its kernel.
    bytes: int | None  # Bytes of its codes in the file; None without a file.
    milliseconds: float | None  # Its time on the NPU; None without one.
    cost: float  # Estimated loss of this choice.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Total:
    """The sum of one quantity over the whole model."""

    name: str  # The quantity's name in a budget.
    value: float  # The value of the chosen policy; file bytes are those of the real file.
    limit: float | None  # The most that was allowed; None without a limit.
    fewest: float  # The value with the fewest bits everywhere.
    most: float  # The value with the most bits everywhere.

    def show(self, field: str) -> str:
        """Returns one of the values as readers see it."""
        return digits(LIMITS[self.name].form, _NONE)(getattr(self, field))


_LAYER: list[Column[AllocatedLayer]] = [
    Column("layer", lambda layer: layer.name, wrap="never"),
    Column("kind", lambda layer: layer.kind, wrap="never", least_width=_WIDE),
    Column("weights", lambda layer: layer.weight_bits, digits("", "float"), number=True),
    Column("activations", lambda layer: layer.activation_bits, digits("", "float"), number=True),
    Column("chosen", lambda layer: layer.chosen, wrap="never", least_width=_WIDE),
    Column("kernel bytes", lambda layer: layer.bytes, digits(",", _NONE), number=True),
    Column("ms", lambda layer: layer.milliseconds, digits(".3g", _NONE), number=True),
    Column("cost", lambda layer: layer.cost, digits(".3g"), number=True),
    Column("same grid as", lambda layer: layer.tied or _NONE, least_width=_WIDE),
]
_TOTAL: list[Column[Total]] = [
    Column("", lambda total: LIMITS[total.name].title, wrap="never"),
    Column("used", lambda total: total.show("value"), number=True),
    Column("limit", lambda total: total.show("limit"), number=True),
    Column("fewest bits", lambda total: total.show("fewest"), number=True),
    Column("most bits", lambda total: total.show("most"), number=True),
]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Allocation(RowTable):
    """The bits of each layer of a model, chosen within a budget.

    Attributes:
        model: its name.
        policy: the policy to quantize the model by; its overrides are the choice.
        layers: the quantized linear layers, in graph order.
        totals: how much of each quantity the model uses, by the names of limits.
        proof: the proof that no other choice is better.
        cost_kind: the cost that was minimized: "sensitivity" or "table".
        pack: how the file stores kernels.
    """

    COLUMNS = tuple(field.name for field in dataclasses.fields(AllocatedLayer))

    model: str
    policy: BitPolicy
    layers: tuple[AllocatedLayer, ...]
    totals: Mapping[str, Total]
    proof: Solution
    cost_kind: str
    pack: str

    def __getitem__(self, name: str) -> AllocatedLayer:
        layers = {layer.name: layer for layer in self.layers}
        if name not in layers:
            raise KeyError(
                f"{name!r} is not a quantized linear layer. {did_you_mean(name, layers)}"
            )
        return layers[name]

    def policy_yaml(self) -> str:
        """Returns the policy as YAML; `BitPolicy(**yaml.safe_load(text))` is the policy."""
        named = {"weight_bits", "activation_bits", "overrides", *self.policy.changes()}
        fields = {name: value for name, value in self.policy.to_dict().items() if name in named}
        return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)

    def write_policy(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy as YAML; the file appears whole, or not at all."""
        write_text(path, self.policy_yaml())

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns a row for each layer, all with the same keys, in graph order."""
        return [dataclasses.asdict(layer) for layer in self.layers]

    def _headline(self) -> str:
        limits = ", ".join(
            f"{LIMITS[name].title} {total.show('value')} of {total.show('limit')}"
            for name, total in self.totals.items()
            if total.limit is not None
        )
        return f"{self.model}: {limits}; cost {self.proof.cost:.4g}, {self.proof.status}"

    def _tables(self) -> dict[str, Table[Any]]:
        layers = Table(columns=_LAYER, rows=self.layers)
        return {
            f"{self.model}: bits by {self.cost_kind}": layers.without_empty(_NONE),
            "the whole model": Table(columns=_TOTAL, rows=list(self.totals.values())),
        }

    def _notes(self) -> list[str]:
        proof = self.proof
        return [
            f"cost {proof.cost:.6g}; no choice within the limits costs less than {proof.bound:.6g}"
            f": {'not proven' if proof.gap else 'proven'} optimal (gap {proof.gap:.2g})."
        ]
