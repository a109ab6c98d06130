"""A processor that a file is made for, and the operators of a file that it leaves to the CPU."""

import dataclasses
from collections.abc import Mapping, Sequence

from sat_tf.export.targets.constraints import Constraint
from sat_tf.export.tflite.contents import Contents, StoredOperator
from sat_tf.targets import Processor


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """An operator of a file that a target's processor leaves to the CPU.

    Attributes:
        operator: its name.
        tensor: the tensor that it makes.
        reason: why, as the processor's compiler sees it.
        fix: what to change; "" where nothing is known.
    """

    operator: str
    tensor: str
    reason: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{self.operator} {self.tensor}: {self.reason}"
        return f"{line}; {self.fix}." if self.fix else f"{line}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target(Processor):
    """A processor with the operators that it computes: one row of the table of targets.

    Attributes:
        operators: the operators that its processor computes, each with its own constraints; None
            where it computes all of TFLite's.
        constraints: those of all operators.
    """

    operators: Mapping[str, Sequence[Constraint]] | None = None
    constraints: Sequence[Constraint] = ()

    def elsewhere(self, contents: Contents) -> list[Elsewhere]:
        """The operators of a file that its processor leaves to the CPU, in order.

        Args:
            contents: the file, written by whatever tool.
        """
        found: list[Elsewhere] = []
        for operator in contents.operators:
            reason, fix = self._problem(operator)
            if not reason and found and self.one_partition:
                reason, fix = f"it is behind {found[0].operator} {found[0].tensor}", ""
            if reason:
                found.append(Elsewhere(operator.name, operator.outputs[0].name, reason, fix))
        return found

    def _problem(self, operator: StoredOperator) -> tuple[str, str]:
        if self.operators is None:
            return "", ""
        if operator.name not in self.operators:
            return f"{self.title} has no {operator.name}", _FIXES.get(operator.name, "")
        for constraint in (*self.constraints, *self.operators[operator.name]):
            reason, fix = constraint(operator)
            if reason:
                return reason, fix
        return "", ""


# What makes these operators unnecessary.
_LOOKED_UP = (
    "quantize for this target, and use a function that it has an operator for: sigmoid, tanh, "
    "swish, hard-swish, elu, gelu, LeakyReLU or PReLU"
)
_FIXES = {
    "DEQUANTIZE": "export with output_type='int8'",
    "CAST": _LOOKED_UP,
    "GATHER": _LOOKED_UP,
    "DEPTH_TO_SPACE": "use a transposed convolution or UpSampling2D",
    "SPACE_TO_DEPTH": "use a convolution with strides",
}
