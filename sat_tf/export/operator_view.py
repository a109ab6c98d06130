"""One operator of a file, seen with what the operators before it have made."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export import graph as ir
from sat_tf.export.contents import NotUnderstoodError, StoredOperator, StoredTensor, names_of
from sat_tf.export.graph import Activation, Codes, Tensor, Window

_ACTIVATIONS = names_of(tfl.ActivationFunctionType)
_PADDINGS = names_of(tfl.Padding)


@dataclasses.dataclass
class Progress:
    """What has been read so far.

    Attributes:
        images: the inputs of the file.
        tensors: by name, without the image.
        operations: those that make them.
        islands: layers that are left float, by the tensors that they make.
        real_kernels: kernels of integers by the name of the float tensor that is made of them.
        places: tensors of codes by the name of the int32 tensor that is made of them, and how much
            was added to them.
    """

    images: tuple[StoredTensor, ...]
    islands: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tensors: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    operations: list[ir.Operation] = dataclasses.field(default_factory=list)
    real_kernels: dict[str, StoredTensor] = dataclasses.field(default_factory=dict)
    places: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)

    def island(self, operator: StoredOperator) -> str | None:
        """The tensor of the layer left float that an operator belongs to, if it does to one."""
        names = {tensor.name.rsplit("/island_", 1)[0] for tensor in operator.outputs}
        return next(iter(names)) if len(names) == 1 and names <= self.islands.keys() else None

    @property
    def known(self) -> set[str]:
        """The tensors that an operator may read."""
        return {*(image.name for image in self.images), *self.tensors}

    def image(self, name: str) -> StoredTensor | None:
        """The input of that name; None where there is none."""
        return next((image for image in self.images if image.name == name), None)


@dataclasses.dataclass(frozen=True)
class OperatorView:
    """One operator, and what has been read before it.

    Attributes:
        stored: the operator.
        progress: what has been read before it.
    """

    stored: StoredOperator
    progress: Progress

    def source(self, index: int = 0) -> str:
        """Name of an input that an operator or the caller makes."""
        tensor = self.tensor(index)
        if tensor.name not in self.progress.known:
            raise NotUnderstoodError(f"nothing before it makes its input {tensor.name}")
        return tensor.name

    def tensor(self, index: int) -> StoredTensor:
        """An input, whatever makes it."""
        tensor = self.stored.inputs[index] if index < len(self.stored.inputs) else None
        if tensor is None:
            raise NotUnderstoodError(f"it has no input {index}")
        return tensor

    def like_a_convolution(self) -> "OperatorView":
        """The same with input, kernel and bias where those of a convolution are."""
        if len(self.stored.inputs) != 4:
            raise NotUnderstoodError("it has no bias, or no shape")
        _, weights, source, bias = self.stored.inputs
        stored = dataclasses.replace(self.stored, inputs=(source, weights, bias))
        return dataclasses.replace(self, stored=stored)

    def constant(self, index: int, *types: str) -> np.ndarray:
        """An input that is a constant of one of some types."""
        tensor = self.tensor(index)
        if tensor.values is None or tensor.type not in types:
            wanted = " or ".join(types)
            raise NotUnderstoodError(f"its input {tensor.name} is no constant of type {wanted}")
        return tensor.values

    def is_constant(self, index: int) -> bool:
        """Whether an input is a constant."""
        return self.tensor(index).values is not None

    @property
    def output(self) -> StoredTensor:
        """The tensor it makes."""
        return self.stored.outputs[0]

    def option(self, name: str, names: dict[int, str] | None = None) -> Any:
        """One of its builtin options, by its name where it has one."""
        value = getattr(self.stored.options, name)
        return value if names is None else names[value]

    def expect(self, *, otherwise: str, **options: Any) -> None:
        """Raises unless options that the graph has no word for have the only value it means."""
        found = {name: self.option(name) for name in options}
        if found != options:
            raise NotUnderstoodError(f"{otherwise} {found}")

    def source_codes(self, index: int = 0) -> Codes | None:
        """How an input is stored; None where it is float."""
        name = self.source(index)
        image = self.progress.image(name)
        if image is not None and image.type == "FLOAT32":
            return None
        if image is not None:
            raise NotUnderstoodError("it reads pixels, which have to become int8 first")
        return self.progress.tensors[name].codes

    def codes(self, activation: Activation = Activation.NONE) -> Codes | None:
        """How the output is stored; its kernel clips where the fused activation says."""
        return _codes(self.output, activation)

    def fused_codes(self) -> Codes | None:
        """How the output is stored, clipped by the fused activation."""
        kind = self.option("fusedActivationFunction", _ACTIVATIONS)
        if kind not in {known.value for known in Activation}:
            raise NotUnderstoodError(f"its fused activation is {kind}")
        codes = self.codes(Activation(kind))
        if codes is None and kind != Activation.NONE.value:
            raise NotUnderstoodError(f"it is float, and its fused activation is {kind}")
        return codes

    def window(self, *, dilation: tuple[int, int] = (1, 1)) -> Window:
        """Where its kernel is placed."""
        return Window(
            strides=(self.option("strideH"), self.option("strideW")),
            padding=self.option("padding", _PADDINGS),
            dilation=dilation,
        )

    def dilation(self) -> tuple[int, int]:
        """Of its kernel."""
        return self.option("dilationHFactor"), self.option("dilationWFactor")


def _codes(tensor: StoredTensor, activation: Activation) -> Codes | None:
    if tensor.type == "FLOAT32":
        return None
    step, point = tensor.steps, tensor.zero_points
    if tensor.type != "INT8" or step.size != 1 or not -128 <= point[0] <= 127:
        raise NotUnderstoodError(
            f"its tensor is {tensor.type} with {step.size} steps and zero points "
            f"{point[:3].tolist()}, expected INT8 with one step and one zero point from -128 to 127"
        )
    if not (np.isfinite(step[0]) and step[0] > 0):
        raise NotUnderstoodError(f"its tensor has the step {step[0]}, expected one above 0")
    zero_point = int(point[0])
    if activation is Activation.RELU:
        return Codes(step[0], zero_point, lowest=zero_point)
    if activation is Activation.UNIT:
        one = int(np.rint(1.0 / float(step[0])))
        low, high = max(zero_point - one, -128), min(zero_point + one, 127)
        return Codes(step[0], zero_point, lowest=low, highest=high)
    return Codes(step[0], zero_point)
