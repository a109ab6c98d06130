"""The TFMOT scheme, and the one-call forms of what users do with it."""

from typing import Any

import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.qat import configs, quantizers, registry
from sat_tf.qat.layout import SatLayoutTransform
from sat_tf.qat.network import Network
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.wrapper import QuantizedLayer


class SatQuantizeScheme(tfmot.quantization.keras.QuantizeScheme):
    """SAT and CG-PACT for `tfmot.quantization.keras.quantize_apply`.

    Every annotated layer becomes a `QuantizedLayer` named `quant_<name>`; layers without an
    annotation stay as they are.

    Args:
        policy: how many bits, and by which variant; the default is 4 bits, integer end to end.
    """

    def __init__(self, policy: BitPolicy | None = None) -> None:
        self.policy = BitPolicy() if policy is None else expect_policy(policy)

    def get_layout_transformer(self) -> SatLayoutTransform:
        """The transform that places the quantizers."""
        return SatLayoutTransform(self.policy)

    def get_quantize_registry(self) -> "SatQuantizeRegistry":
        """TFMOT's view of the table of supported layers."""
        return SatQuantizeRegistry(self.policy)


class SatQuantizeRegistry(tfmot.quantization.keras.QuantizeRegistry):
    """TFMOT's view of the table of supported layers."""

    def __init__(self, policy: BitPolicy) -> None:
        self.policy = policy

    def supports(self, layer: keras.layers.Layer) -> bool:
        """False: TFMOT asks only about layers that nobody annotated, and these stay float.

        What enters the annotated layers from them is quantized by the layout already.
        """
        del layer
        return False

    def get_quantize_config(self, layer: keras.layers.Layer) -> configs.LayerConfig:
        """The annotation a layer gets from the policy where it has none of its own.

        Raises:
            ValueError: sat-tf does not quantize such a layer.
        """
        problem = registry.unsupported_problem(layer)
        if problem:
            raise ValueError(f"{layer.name}: {problem}.")
        return configs.LayerConfig.from_policy(self.policy.at(layer.name))


def quantize_model(model: keras.Model, policy: BitPolicy | None = None) -> keras.Model:
    """Quantizes a float Keras model: annotates every layer, and applies the scheme.

    The model itself is not changed. The quantized model starts with its weights, and, unless the
    policy says otherwise, with its function.

    Args:
        model: a built Functional or Sequential tf_keras model with one input and one output.
        policy: see `BitPolicy`.

    Returns:
        A Keras model to compile, fit, save and export like any other.

    Raises:
        ValueError: the model cannot be quantized; lists every problem with its fix.
    """
    scheme = SatQuantizeScheme(policy)
    network = Network(model)
    if any(isinstance(node.layer, QuantizedLayer) for node in network):
        raise ValueError(
            f"model {model.name!r}: received a model that is quantized already, expected a float "
            "one; call sat_tf.requantize(model, policy) to give it another policy."
        )
    if network.problems or any(isinstance(n.layer, keras.layers.Lambda) for n in network):
        # TFMOT refuses some of these itself, one at a time, and passes over Lambda layers with a
        # warning; the placement names all.
        annotations = {node.name: None for node in network}
        place(network, annotations, scheme.policy)
    annotated = tfmot.quantization.keras.quantize_annotate_model(model)
    return tfmot.quantization.keras.quantize_apply(annotated, scheme=scheme)


def quantize_scope(*objects: dict[str, Any]) -> Any:
    """A scope in which Keras can load models quantized by sat-tf or by TFMOT.

    Models of sat-tf load without it, once sat_tf is imported; it is here for code that is used to
    TFMOT's scope of this name.

    Args:
        *objects: dictionaries of further custom objects.
    """
    ours = {
        cls.__name__: cls
        for cls in (
            QuantizedLayer,
            configs.LayerConfig,
            configs.PlacedConfig,
            quantizers.AtLeast,
            quantizers.DorefaQuantizer,
            quantizers.ImageQuantizer,
            quantizers.PactQuantizer,
            quantizers.RangeObserver,
            quantizers.StreamQuantizer,
        )
    }
    return tfmot.quantization.keras.quantize_scope(ours, *objects)
