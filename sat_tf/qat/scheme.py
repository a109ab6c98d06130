"""The TFMOT scheme, and `quantize_model`, which applies it in one call."""

from typing import Any

import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.either_keras import for_keras3
from sat_tf.graph import operation_layers
from sat_tf.graph.network import Network, check_model, is_annotated, refuse_losses, refuse_wrapped
from sat_tf.graph.rewrite import rewritten
from sat_tf.qat import configs
from sat_tf.qat.layout import SatLayoutTransform, quantized_model
from sat_tf.qat.model_class import of_class_of, remember
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.wrapper import QuantizedLayer, warn_of_lost_zeros
from sat_tf.quantizers.quantizer_table import QUANTIZERS


class SatQuantizeScheme(tfmot.quantization.keras.QuantizeScheme):
    """SAT and CG-PACT for `tfmot.quantization.keras.quantize_apply`.

    Every annotated layer becomes a `QuantizedLayer` named `quant_<name>`, or several where it can
    only be quantized in parts; layers without an annotation stay as they are, and float.

    TFMOT refuses models and layers of Keras 3 before it asks a scheme; call
    `sat_tf.quantize_model(model, policy)`, which takes them, and needs no annotations. The default
    policy is 8 bits, integer end to end.
    """

    def __init__(self, policy: BitPolicy | int | None = None) -> None:
        self.policy = BitPolicy.mobile() if policy is None else expect_policy(policy)

    def get_layout_transformer(self: "SatQuantizeScheme | None" = None) -> SatLayoutTransform:
        """The transform that places the quantizers."""
        if self is None:  # TFMOT, which calls this first, was given the class
            raise TypeError(
                "scheme: received the class SatQuantizeScheme, expected one with its policy; write "
                "scheme=sat_tf.SatQuantizeScheme(policy)."
            )
        return SatLayoutTransform(self.policy)

    def get_quantize_registry(self) -> "SatQuantizeRegistry":
        """TFMOT's view of the table of supported layers."""
        return SatQuantizeRegistry()


class SatQuantizeRegistry(tfmot.quantization.keras.QuantizeRegistry):
    """TFMOT's view of the table of supported layers."""

    def supports(self, layer: keras.layers.Layer) -> bool:
        """False: TFMOT asks only about layers without an annotation, and these stay float."""
        return False

    def get_quantize_config(self, layer: keras.layers.Layer) -> configs.LayerConfig:
        """The annotation of a layer that has none of its own: all of it is as the policy says."""
        return configs.LayerConfig()


@for_keras3(by="quantized")
def quantize_model(model: keras.Model, policy: BitPolicy | int | None = None) -> keras.Model:
    """Quantizes a float Keras model, as if every layer were annotated and the scheme applied.

    The model itself is not changed. The quantized model starts with its weights, and, unless the
    policy says otherwise, with its function. Nested models are flattened: their layers are named
    by the path, `quant_backbone/conv1`, and `overrides` of the policy can name it `backbone/conv1`.
    A layer that is called several times keeps one set of weights; each call gets a quantizer of its
    own. Frozen layers (trainable=False) stay frozen, with the clipping levels of their outputs.

    A pruned model (after `tfmot.sparsity.keras.strip_pruning`) keeps its zeros if the grid has a
    0, as weight_grid="narrow" does; the DoReFa grid has none, and a warning says so. Training moves
    weights of 0 like all others; multiply the kernels by their mask after each step to keep them.

    A model of your own class, with a `train_step` for example, keeps it if
    `YourClass(inputs, outputs, name=...)` builds one; its other attributes, such as a temperature
    or a teacher, are carried over. If the class cannot be kept, a warning says so.

    Args:
        model: a built Functional or Sequential model, of tf_keras, or of Keras 3, which stays one
            (see "From a Keras 3 model to a phone"). Inputs and outputs keep their order
            and structure; an output in a list has the name of its quantized layer.
        policy: see `BitPolicy`; 4 means `BitPolicy.mobile(4)`, and nothing `BitPolicy.mobile()`,
            which has 8 bits.

    Returns:
        A Keras model to compile, fit, save and export like any other.

    Raises:
        ValueError: the model cannot be quantized; lists every problem with its fix.
    """
    scheme = SatQuantizeScheme(policy)
    check_model(model)
    refuse_wrapped(model)
    if is_annotated(model):
        refuse_losses(model)
        network = Network(rewritten(model, processor=scheme.policy.processor).model)
        if network.problems:
            # TFMOT refuses some of these itself, one at a time; the placement names all.
            place(network, {node.name: None for node in network}, scheme.policy)
        annotated = tfmot.quantization.keras.quantize_annotate_model(network.model)
        quantized = tfmot.quantization.keras.quantize_apply(annotated, scheme=scheme)
    else:
        # TFMOT would do the same through two more copies of the model, the first of which fails
        # for models in mixed precision under another global policy.
        quantized = quantized_model(model, None, scheme.policy)
    warn_of_lost_zeros(quantized)
    return remember(of_class_of(model, quantized), scheme.policy)


def quantize_scope(*objects: dict[str, Any]) -> Any:
    """A scope in which Keras can load models quantized by sat-tf or by TFMOT.

    Models of sat-tf load without it; it exists for code written for TFMOT's scope of this name,
    and takes dictionaries of further custom objects.
    """
    of_tfmot = (QuantizedLayer, configs.LayerConfig, configs.PlacedConfig, configs.AtLeast)
    classes = (*of_tfmot, *QUANTIZERS.values(), *operation_layers.LAYERS)
    ours = {cls.__name__: cls for cls in classes}
    return tfmot.quantization.keras.quantize_scope(ours, *objects)
