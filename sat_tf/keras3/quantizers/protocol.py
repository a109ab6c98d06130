"""What a quantizer of a Keras 3 layer answers; needs nothing but Keras 3 and NumPy.

Every quantizer of `sat_tf.quantizers` that can be placed has one here, with the name of its class,
the arguments of its constructor and the names, shapes and meanings of its variables. All else that
is asked of a quantizer, such as its codes, is asked of that one, on the tf_keras model.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

# What a quantizer's variables are called by, and what they are.
Variables = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableSpec:
    """A variable that a layer makes for its quantizer.

    Attributes:
        shape: of the variable.
        start: its first value, everywhere.
        dtype: its type.
        trainable: whether the optimizer changes it.
        lowest: for a trainable one, what no value of it is below after a step; None for any.
        follows_data: whether it is assigned in training, as the statistics of BatchNormalization.
    """

    shape: tuple[int, ...] = ()
    start: float = 0.0
    dtype: str = "float32"
    trainable: bool = False
    lowest: float | None = None
    follows_data: bool = False


class Quantizer(abc.ABC):
    """Effective weights of latent ones, or a quantized tensor of a float one."""

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """The variables that it needs, by name; none here.

        Args:
            shape: of the kernel, or of the tensor with its batch.
        """
        del shape
        return {}

    @abc.abstractmethod
    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """Effective weights in float32, or the quantized tensor in the type of `inputs`.

        Differentiable. In training it may assign variables that follow the data.

        Args:
            inputs: latent weights in float32; or a tensor of any floating type.
            training: whether the layer is in training; False for a frozen one.
            variables: those of `variables`, by name.
        """

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
