"""One operator of a file as an operation reads it, and the operators read before it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.tflite.contents import NotUnderstoodError, StoredOperator, StoredTensor, names_of
from sat_tf.exact.tflite.tensors import Activation, Codes, Tensor, Window

_ACTIVATIONS = names_of(tfl.ActivationFunctionType)
_KNOWN_ACTIVATIONS = {activation.value for activation in Activation}
_PADDINGS = names_of(tfl.Padding)


@dataclasses.dataclass
class ReadingProgress:
    """The operators of a file that have been read so far."""

    images: tuple[StoredTensor, ...]  # The inputs of the file.
    # Layers that are left float, by the tensors that they make.
    float_layers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # The tensors by name, without the images.
    tensors: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    operations: list[Any] = dataclasses.field(default_factory=list)  # The makers of these tensors.
    # Facts on operators that do not complete an operation yet, as its class has noted them, by the
    # tensors that these operators make.
    pending: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def known(self) -> set[str]:
        """The tensors that an operator may read."""
        return {*(image.name for image in self.images), *self.tensors}

    def image(self, name: str) -> StoredTensor | None:
        """Returns the input of the file with that name; None without one."""
        return next((image for image in self.images if image.name == name), None)


@dataclasses.dataclass(frozen=True)
class OperatorView:
    """One operator, and the operators read before it."""

    stored: StoredOperator  # The operator.
    progress: ReadingProgress  # The operators read before it.
    place: int = 0  # The index of its output here among the operator's outputs.

    def source(self, index: int = 0) -> str:
        """Returns the name of an input that an operator or the caller makes."""
        tensor = self.tensor(index)
        if tensor.name not in self.progress.known:
            raise NotUnderstoodError(f"nothing before it makes its input {tensor.name}")
        return tensor.name

    def tensor(self, index: int) -> StoredTensor:
        """Returns an input, whatever makes it."""
        tensor = self.stored.inputs[index] if self.has(index) else None
        if tensor is None:
            raise NotUnderstoodError(f"it has no input {index}")
        return tensor

    def has(self, index: int) -> bool:
        """Returns whether there is an input at this index."""
        return index < len(self.stored.inputs) and self.stored.inputs[index] is not None

    def constant(self, index: int, *types: str) -> np.ndarray:
        """Returns the values of an input that is a constant of one of some types."""
        tensor = self.tensor(index)
        if tensor.values is None or tensor.type not in types:
            listed = " or ".join(types)
            raise NotUnderstoodError(f"its input {tensor.name} is not a constant of type {listed}")
        return tensor.values

    def expect_shape(self, index: int, option: str = "") -> None:
        """Raises unless the shape in its operand or option, which kernels make, is its output's."""
        if option and not self.has(index):
            sizes = np.asarray(self.option(option))
        else:
            sizes = self.constant(index, "INT32")
        shape = self.output.shape
        if sizes.shape != (len(shape),) or not np.all((sizes == -1) | (sizes == shape)):
            raise NotUnderstoodError(f"it is given the shape {sizes.tolist()}, and makes {shape}")

    def is_constant(self, index: int) -> bool:
        """Returns whether an input is a constant."""
        return self.tensor(index).values is not None

    @property
    def name(self) -> str:
        """The schema's name of the operator."""
        return self.stored.name

    @property
    def output(self) -> StoredTensor:
        """The tensor it makes."""
        return self.stored.outputs[0]

    def option(self, name: str) -> Any:
        """Returns one of its builtin options."""
        return getattr(self.stored.options, name)

    def source_codes(self, index: int = 0) -> Codes | None:
        """Returns how an input is stored; None where it is float."""
        name = self.source(index)
        if name in self.progress.tensors:
            codes = self.progress.tensors[name].codes
            if codes is not None and codes.is_unsigned:
                raise NotUnderstoodError(f"it reads {name}, which is uint8, as only outputs are")
            return codes
        image = self.progress.image(name)
        if image is not None and image.type == "FLOAT32":
            return None
        raise NotUnderstoodError("it reads pixels, which have to become int8 first")

    def codes(self, activation: Activation = Activation.NONE) -> Codes | None:
        """Returns how the output is stored; its kernel clips where the fused activation says."""
        return codes_of(self.output, activation)

    def moved_codes(self) -> Codes | None:
        """Returns the codes of the input, which the output shares."""
        codes, source = self.codes(), self.source_codes()
        if grid_of(codes) != grid_of(source):
            raise NotUnderstoodError("it changes the scale or the zero point")
        return source

    def selected_codes(self) -> Codes | None:
        """Returns the codes of the output, which are selected from the inputs that are values."""
        codes = self.codes()
        input_codes = [
            self.source_codes(index) if tensor.data is None else codes_of(tensor)
            for index, tensor in enumerate(self.stored.inputs)
            if tensor and not tensor.holds_numbers
        ]
        if any(grid_of(source) != grid_of(codes) for source in input_codes):
            raise NotUnderstoodError("its inputs have other scales or zero points than its output")
        if codes is None:
            return None
        sources = [source for source in input_codes if source]
        if not sources:
            raise NotUnderstoodError("it reads nothing but places")
        lowest = min(source.lowest for source in sources)
        highest = max(source.highest for source in sources)
        return dataclasses.replace(codes, lowest=lowest, highest=highest)

    @property
    def activation(self) -> str:
        """The name of its fused activation, or of the activation that it is; "NONE" without."""
        if self.name in _KNOWN_ACTIVATIONS:
            return self.name
        number = getattr(self.stored.options, "fusedActivationFunction", 0)
        return _ACTIVATIONS.get(number, str(number))

    def fused_codes(self) -> Codes | None:
        """Returns how the output is stored, clipped by its activation where it has one."""
        activation = self.activation
        if activation not in _KNOWN_ACTIVATIONS:
            raise NotUnderstoodError(f"its fused activation is {activation}")
        codes = self.codes(Activation(activation))
        if codes is None and activation != Activation.NONE.value:
            raise NotUnderstoodError(f"it is float, and its fused activation is {activation}")
        return codes

    def window(self, *, dilates: bool = False) -> Window:
        """Returns the places of its kernel."""
        strides, dilation = (self.option("strideH"), self.option("strideW")), (1, 1)
        if dilates:
            dilation = self.option("dilationHFactor"), self.option("dilationWFactor")
        return Window(strides, _PADDINGS[self.option("padding")], dilation)

    def kernel(self) -> StoredTensor:
        """Returns the kernel of a linear operator, or the integers that it is made from."""
        weights = self.tensor(1)
        pending = self.progress.pending.get(weights.name)
        return pending if isinstance(pending, StoredTensor) else weights

    def expect_units(self, scales: np.ndarray, error: float = 0.0) -> None:
        """Raises unless a bias counts units of the sum; kernels differ on biases in other units.

        Other tools have other products, within a relative error; kernels take the product of the
        factors, and the bias as it is.
        """
        bias, source = self.tensor(2), self.source_codes()
        unit = (source.scale * scales).astype(np.float32) if source else scales
        if (
            bias.scales.size not in (1, scales.size)
            or np.any(np.abs(bias.scales - unit) > error * unit)
            or np.any(bias.zero_points)
        ):
            raise NotUnderstoodError("the scales of its bias are not input scale · weight scale")


def grid_of(codes: Codes | None) -> tuple[np.float32, int, int] | None:
    """Returns scale, zero point and bits; None for float values."""
    return None if codes is None else (codes.scale, codes.zero_point, codes.bits)


def expect_grid(fixed: Codes, codes: Codes) -> None:
    """Raises unless codes have the grid that TFLite fixes for an operator."""
    if grid_of(fixed) != grid_of(codes):
        raise NotUnderstoodError(
            f"its tensor has the scale {codes.scale} and the zero point {codes.zero_point}, "
            f"expected 1/{1.0 / fixed.scale:g} and {fixed.zero_point}"
        )


def codes_of(tensor: StoredTensor, activation: Activation = Activation.NONE) -> Codes | None:
    """Returns how a tensor is stored, with a fused activation's ends; None where it is float."""
    if tensor.type == "FLOAT32":
        return None
    scale, point = tensor.scales, tensor.zero_points
    is_wide = tensor.type == "INT16"
    low, high = (0, 0) if is_wide else (-128, 127)
    if not (is_wide or tensor.type == "INT8") or scale.size != 1 or not low <= point[0] <= high:
        raise NotUnderstoodError(
            f"its tensor is {tensor.type} with {scale.size} scales and zero points "
            f"{point[:3].tolist()}, expected INT8 with one scale and one zero point from -128 to "
            "127, or INT16 with the zero point 0"
        )
    if not (np.isfinite(scale[0]) and scale[0] > 0):
        raise NotUnderstoodError(f"its tensor has the scale {scale[0]}, expected one above 0")
    grid = Codes.wide(scale[0]) if is_wide else Codes(scale[0], int(point[0]))
    return grid.clipped(activation)
