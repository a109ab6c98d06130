"""Rewrites a model so that each of its operations is a layer that sat-tf quantizes."""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.layer_copy import layer_copy
from sat_tf.qat.layer_plans import Call, Plan, plan_of


def with_layers_for_operations(model: keras.Model) -> keras.Model:
    """The same model, of layers that can be quantized.

    - TensorFlow operations on Keras tensors (`x + y`, `x / 6`, `x[:, 1:]`, `tf.nn.relu(x)`) become
      layers of the same name.
    - A separable convolution becomes a depthwise one, `<name>_depthwise`, and a pointwise one with
      its name; a causal one gets its padding from a layer `<name>_padding` in front.
    - A linear layer with an activation that is no rectifier keeps its name; the activation gets a
      layer behind it, `<name>_<activation>`.
    - `x + scale * y`, which is a layer of its own in Keras's InceptionResNetV2, becomes an addition
      with its name and a scaling `<name>_scale` in front.
    - One-dimensional pooling becomes two-dimensional pooling of images with one row, between
      layers `<name>_image` and `<name>_row`.
    - Each part that `tf.split` or `tf.unstack` makes becomes a slice, `<name>_part_0` and so on.
    - An operation that none of them does becomes an `Operation`, which is never quantized.

    Every output stays the same, bit for bit.

    Args:
        model: a built Functional or Sequential model, without models inside.

    Returns:
        A new model with copies of the weights; `model` itself where there is nothing to rewrite.
    """
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth]]
    calls = [Call(node, tuple(nodes)) for node in nodes]
    plans = {id(call.node): plan_of(call) for call in calls}
    if not any(plans.values()):
        return model
    return _Rewriter(model, calls, plans).model()


class _Rewriter:
    def __init__(
        self, model: keras.Model, calls: list[Call], plans: dict[int, Plan | None]
    ) -> None:
        self.original = model
        self.plans = plans
        self.names = {layer.name for layer in model.layers}
        self.layers: dict[int, list[keras.layers.Layer]] = {}
        self.made: dict[int, Any] = {}
        # Who makes a tensor. It is called when something needs it: nothing needs the size of a
        # tensor any more when `tf.reshape` has become a layer.
        self.makers: dict[int, Call] = {}
        for call in calls:
            for tensor in tf.nest.flatten(call.node.outputs):
                self.makers[id(tensor)] = call

    def model(self) -> keras.Model:
        inputs, outputs = (
            tf.nest.map_structure(self._tensor, getattr(self.original, f"_nested_{side}"))
            for side in ("inputs", "outputs")
        )
        return keras.Model(inputs, outputs, name=self.original.name)

    def _tensor(self, old: Any) -> Any:
        """The new tensor in the place of an old one; whatever else as it is."""
        if id(old) not in self.makers:
            return old
        waiting = [self.makers[id(old)]]
        while waiting:  # no recursion, which deep models would exhaust
            call = waiting[-1]
            missing = [tensor for tensor in self._sources(call) if id(tensor) not in self.made]
            if missing:
                waiting += [self.makers[id(tensor)] for tensor in missing]
                continue
            waiting.pop()
            outputs = tf.nest.flatten(call.node.outputs)
            if any(id(tensor) not in self.made for tensor in outputs):
                new = tf.nest.flatten(self._call(call))
                self.made.update({id(one): other for one, other in zip(outputs, new, strict=True)})
        return self.made[id(old)]

    def _sources(self, call: Call) -> list[Any]:
        plan = self.plans[id(call.node)]
        if call.node.is_input:
            return []
        return plan.sources if plan else call.node.keras_inputs

    def _call(self, call: Call) -> Any:
        plan = self.plans[id(call.node)]
        layers = self._layers(call, plan)
        if call.node.is_input:
            return layers[0].output
        if plan is None:
            arguments = (call.node.call_args, call.node.call_kwargs)
            args, kwargs = tf.nest.map_structure(
                lambda value: self.made.get(id(value), value), arguments
            )
            made = layers[0](*args, **kwargs)
            layers[0].set_weights(call.layer.get_weights())
            return made
        tensors = [self.made[id(source)] for source in plan.sources]
        for place, layer in zip(plan.fronts, layers, strict=False):
            tensors[place] = layer(tensors[place])
        made = tensors if plan.takes_list else tensors[0]
        if plan.beside:
            return [layer(made) for layer in layers]
        for layer, step in zip(layers[len(plan.fronts) :], plan.steps, strict=True):
            made = layer(made)
            if step.weights:
                layer.set_weights(step.weights)
        return made

    def _layers(self, call: Call, plan: Plan | None) -> list[keras.layers.Layer]:
        """New layers for a call; the same ones for each call of one layer."""
        # Operations that are alike may have one layer, with other constants in each call.
        key = id(call.node) if call.symbol else id(call.layer)
        if key not in self.layers:
            if plan is None:
                made = [layer_copy(call.layer)]
            else:
                made = [
                    step.layer(name=self._name(step.suffix, call.layer.name), dtype=call.dtype)
                    for step in plan.layers
                ]
            for layer in made:
                layer.trainable = call.layer.trainable
            self.layers[key] = made
        return self.layers[key]

    def _name(self, suffix: str, name: str) -> str:
        if not suffix:
            return name
        name = f"{name}_{suffix}"
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name
