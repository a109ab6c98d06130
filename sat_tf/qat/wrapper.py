"""The Keras layer that quantizes another layer's kernel and output."""

import contextlib
import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tensorflow.python.framework import ops

from sat_tf.graph import flatten, layer_kinds
from sat_tf.messages import first_ones, warn
from sat_tf.qat.configs import PlacedConfig, make_variables
from sat_tf.quantizers import values
from sat_tf.quantizers.protocol import ActivationQuantizer, Quantizer, VariableSpec, WeightQuantizer
from sat_tf.quantizers.quantizing_layer import QuantizingLayer
from sat_tf.version import marked, unmarked

_followed: "weakref.WeakSet[tf.Graph]" = weakref.WeakSet()


@tf.autograph.experimental.do_not_convert
def graphs_go_with(owner: Any) -> None:
    """Lets the graphs being traced be freed with `owner`, which takes part in them.

    TensorFlow registers the gradient function of every call of a `tf.custom_gradient` for as long
    as the process lives, and that function holds the graph of the call. Keras' optimizers make one
    such call in each traced training step (`tf.distribute.ReplicaContext.all_reduce`), whose graph
    would never be freed. Once the owner is gone, these graphs can no longer be differentiated.
    """
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:  # the outermost is not a function's
        if graph not in _followed:
            _followed.add(graph)
            weakref.finalize(owner, _forget_gradients, weakref.ref(graph)).atexit = False
        graph = graph.outer_graph


def _forget_gradients(reference: "weakref.ref[tf.Graph]") -> None:
    """Removes the gradient functions of single calls in a graph from TensorFlow's registry."""
    graph = reference()
    if graph is None:
        return
    registered = ops.gradient_registry._registry
    for op in graph.get_operations():
        if op.type == "IdentityN":
            with contextlib.suppress(ValueError):  # it has no such attribute
                name = op.get_attr("_gradient_op_type").decode()
                # The name that tf.custom_gradient gives to a call.
                if name.startswith("CustomGradient-"):
                    registered.pop(name, None)


@keras.utils.register_keras_serializable(package="sat_tf")
class QuantizedLayer(QuantizingLayer, keras.layers.Wrapper):
    """A layer of the user's model with the quantizers of the placement; see `QuantizingLayer`.

    TFMOT's own wrapper is not used because it drops the kernel variable from its layer, trains
    frozen layers, and needs a custom object scope to be loaded.

    The `constant_kernel` is the copy that `copy_effective_kernel` made, while it is in use.
    """

    def __init__(
        self, layer: keras.layers.Layer, quantize_config: PlacedConfig, **options: Any
    ) -> None:
        options.setdefault("name", f"quant_{layer.name}")
        # The layer inside casts its own inputs.
        super().__init__(layer, **{**options, "dtype": "float32", "autocast": False})
        self.quantize_config = quantize_config
        if quantize_config.replaces(layer):  # which is then never called
            self._activity_regularizer = layer.activity_regularizer
        # Past Keras' own __setattr__, which would track it and make the layer impossible to copy.
        object.__setattr__(self, "_one_call_at_a_time", threading.RLock())
        object.__setattr__(self, "_copy", None)
        object.__setattr__(self, "_graphs", {})
        self.use_kernel(None)

    # Otherwise a SavedModel whose configuration cannot be read would silently load as a layer that
    # only replays what was traced.
    _must_restore_from_config = True

    def build(self, input_shape: Any) -> None:
        if not self.layer.built:
            with tf.name_scope(self.layer.name):
                self.layer.build(input_shape)
            self.layer.built = True
        variables = self._variables_of_quantizers(input_shape)
        self.kernel_variables, self.output_variables = variables
        self.built = True

    # Only RangeObserver branches on tensors, by tf.cond; without autograph's rewriting of this
    # method and all below it, models are built a quarter faster.
    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Any, training: Any = None) -> Any:
        if training is None:
            training = keras.backend.learning_phase()
            # A placeholder while Keras draws the graph of a model; layers branch on it in Python.
            training = False if tf.is_tensor(training) else training
        graphs_go_with(self)
        if _is_drawn() and tf.nest.flatten(inputs)[0].dtype.is_floating:
            return self._output_by(values.itself, self.place, inputs, training)
        return self._quantized_call(inputs, training)

    @property
    def weight_quantizer(self) -> WeightQuantizer | None:
        """The quantizer of the kernel."""
        return self.quantize_config.weights

    @property
    def output_quantizer(self) -> Quantizer | None:
        """The quantizer or observer of the output."""
        return self.quantize_config.output

    @property
    def place(self) -> str:
        """The place of the quantizer of the output, one of `PLACES`."""
        return self.quantize_config.place_at(self.layer)

    @property
    def _kernel_name(self) -> str:
        return layer_kinds.kernel_name(self.layer)

    @property
    def gate_bits(self) -> int | None:
        """The bits of the weights of a recurrent layer; None for 8."""
        return self.quantize_config.gate_bits

    @property
    def _int8_weights(self) -> str:
        return self.quantize_config.int8_weights_of(self.layer)

    def make_variables(self, specs: Mapping[str, VariableSpec]) -> dict[str, tf.Variable]:
        """Makes the variables that a quantizer declares, in their order."""
        return make_variables(self, specs)

    def _call_layer(self, inputs: Any, training: Any) -> Any:
        with_gradient = layer_kinds.find_support(self.layer).in_training
        if training and with_gradient is not None:
            return with_gradient(self.layer, inputs)
        return super()._call_layer(inputs, training)

    def _states(
        self, quantize: Callable[[Any], Any], inputs: Any, observes: Any, in_floats: bool = False
    ) -> Any:
        states = functools.partial(super()._states, quantize, in_floats=in_floats)
        if not tf.executing_eagerly() or tf.is_tensor(observes):
            return states(inputs, observes)
        # Operations one by one would take twenty times as long, step after step.
        key = bool(observes), in_floats
        if key not in self._graphs:
            graph = functools.partial(states, observes=bool(observes))
            self._graphs[key] = tf.function(graph, autograph=False, reduce_retracing=True)
        return self._graphs[key](inputs)

    def effective_kernel(self, training: Any = False) -> tf.Tensor | None:
        """The effective kernel, in float32; None if the layer has no kernel."""
        if _is_drawn():
            return None
        if self.constant_kernel is not None and isinstance(training, bool | int) and not training:
            return tf.convert_to_tensor(self.constant_kernel)
        return super().effective_kernel(training)

    def keep_bits_above(self, floor: tf.Variable | None) -> None:
        """Quantizes kernel and output to no fewer bits than a variable says, from the next call on.

        The floor, an int64 scalar, is no weight of the layer; with 0 or None it has its own bits.
        """
        object.__setattr__(self, "_bit_floor", floor)
        self._graphs.clear()  # they read the floor that was there

    def copy_effective_kernel(self) -> None:
        """Computes the effective kernel once, for all calls in inference until `forget_copy`.

        The copy is the same variable every time, because functions traced while it was in use keep
        reading it.
        """
        self.forget_copy()
        effective = self.effective_kernel()
        if effective is None:
            return
        if self._copy is None:
            object.__setattr__(self, "_copy", tf.Variable(effective, trainable=False, name="copy"))
        self._copy.assign(effective)
        self.use_kernel(self._copy)

    def use_kernel(self, kernel: tf.Tensor | tf.Variable | None) -> None:
        """Makes calls in inference compute with an effective kernel; with their own where None."""
        object.__setattr__(self, "constant_kernel", kernel)

    @contextlib.contextmanager
    def one_kernel(self) -> Iterator[None]:
        """Lets calls in inference share one effective kernel; the latent one must not change."""
        before = self.constant_kernel
        self.use_kernel(self.effective_kernel())
        try:
            yield
        finally:
            self.use_kernel(before)

    def forget_copy(self) -> None:
        """The layer computes its effective kernel in every call again; the copy holds NaN."""
        if self.constant_kernel is not None:
            self.constant_kernel.assign(tf.fill(self.constant_kernel.shape, math.nan))
        self.use_kernel(None)

    @property
    def output_name(self) -> str:
        """The user's name of the output of the model that the layer makes, if it makes one."""
        return self.quantize_config.output_name or str(self.layer.name)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.layer.compute_output_shape(input_shape)

    _output_shape = compute_output_shape

    @property
    def activity_regularizer(self) -> None:
        """None: the wrapped layer adds its own, or its quantizer does in place of a rectifier."""
        return None

    # `quantize_apply` builds the layout's model and then the final one from the same layers, so a
    # layer has been called twice; the user's model consists of the last calls.
    @property
    def input(self) -> Any:
        return self.get_input_at(len(self.inbound_nodes) - 1)

    @property
    def output(self) -> Any:
        return self.get_output_at(len(self.inbound_nodes) - 1)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_one_call_at_a_time"]
        return {**state, "_copy": None, "_graphs": {}, "constant_kernel": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_one_call_at_a_time": threading.RLock()})

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "quantize_config": self.quantize_config.get_config()}
        config["layer"]["config"] |= flatten.left_out_of_config(self.layer)
        return marked(config)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "QuantizedLayer":
        config = unmarked(config)
        wrapped = dict(config.pop("layer"))
        # HDF5 files and SavedModels are read by Keras' older rules, which find a registered class
        # only by its full name; the newer ones accept that too.
        wrapped["class_name"] = wrapped.get("registered_name") or wrapped["class_name"]
        layer = keras.layers.deserialize(
            wrapped, custom_objects=custom_objects, use_legacy_format="module" not in wrapped
        )
        quantize_config = PlacedConfig.from_config(config.pop("quantize_config"))
        return cls(layer, quantize_config, **config)


def _is_drawn() -> bool:
    """Whether Keras makes a model, and asks for no more than the shape and type of an output."""
    graph = tf.compat.v1.get_default_graph()
    return str(getattr(graph, "name", "")).endswith("_scratch_graph")


def weight_quantizer(layer: keras.layers.Layer) -> WeightQuantizer | None:
    """The quantizer of a layer's kernel; None where it has none."""
    return layer.quantize_config.weights if isinstance(layer, QuantizedLayer) else None


def output_quantizer(layer: keras.layers.Layer) -> Quantizer | None:
    """The quantizer or observer of a layer's output; None where it has none."""
    return layer.quantize_config.output if isinstance(layer, QuantizedLayer) else None


def clipping_quantizer(layer: keras.layers.Layer) -> ActivationQuantizer | None:
    """The quantizer of a layer's output, if it is one with a clipping level."""
    quantizer = output_quantizer(layer)
    if isinstance(quantizer, ActivationQuantizer) and quantizer.has_clipping_level:
        return quantizer
    return None


def has_table(layer: keras.layers.Layer) -> bool:
    """Whether a layer gives rows of int8 codes, of a table on one scale."""
    return isinstance(layer, QuantizedLayer) and layer.quantize_config.rows


def rounds_to_input(layer: keras.layers.Layer) -> bool:
    """Whether a layer's quantizer quantizes the layer's input, too."""
    return isinstance(layer, QuantizedLayer) and layer.quantize_config.around


# A kernel with at least this share of zeros counts as pruned.
_PRUNED = 0.25


def warn_of_lost_zeros(quantized: keras.Model) -> None:
    """Warns of kernels that seem to be pruned, in quantizers without a 0."""
    lost: dict[str, list[str]] = {}
    for layer in quantized.layers:
        quantizer = weight_quantizer(layer)
        if quantizer is None:
            continue
        share = float(np.mean(layer_kinds.kernel_of(layer.layer).numpy() == 0.0))
        if _PRUNED <= share < 1.0 and not quantizer.holds_zero:
            name = f"{layer.layer.name} ({100 * share:.0f} % zeros)"
            lost.setdefault(quantizer.zeros_stay_with, []).append(name)
    for fix, names in lost.items():
        warn(
            f"model {quantized.name!r}: zero weights of {first_ones(names)} do not stay 0, which "
            f"is no value of their quantizer; if they are pruned, set BitPolicy({fix}), which "
            "keeps them."
        )


# The functions that Keras traces once and then keeps.
_EVALUATING = ("test_function", "predict_function")
_TRACED_INSIDE = "_sat_tf_traced_with_constant_weights"


@contextlib.contextmanager
def kernels_kept(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Lets all calls of quantized layers in inference share effective kernels computed on entry."""
    with contextlib.ExitStack() as kernels:
        for layer in layers:
            if isinstance(layer, QuantizedLayer):
                kernels.enter_context(layer.one_kernel())
        yield


@contextlib.contextmanager
def constant_weights(model: keras.Model) -> Iterator[None]:
    """Lets `evaluate`, `predict` and calls of a quantized model reuse its effective weights.

    Inside, they read the weights computed on entry, bit for bit those they would have computed
    themselves, at the cost of one more copy of the kernels in memory from the first entry on:

        with sat_tf.callbacks.constant_weights(model):
            model.evaluate(images, labels)

    The weights must not change inside; training raises an error. A `tf.function` of your own that
    is first called inside keeps reading the copies, which hold NaN outside: it never gives the
    results of old weights.

    Raises:
        ValueError: nothing in the model, at any depth, is quantized by sat-tf, or it is not one of
            tf_keras.
        RuntimeError: the model is inside another `constant_weights`, or is trained in this one.
    """
    copies = ConstantWeights(model)
    if copies.are_read:
        raise RuntimeError(
            f"constant_weights: {model.name!r} already has constant weights; leave the inner one "
            "out."
        )
    with _own_functions(model):
        copies.fill()
        try:
            yield
        finally:
            copies.clear()


class ConstantWeights:
    """Copies of the effective kernels of a model's quantized layers."""

    def __init__(self, model: keras.Model) -> None:
        if not isinstance(model, keras.Model):
            raise ValueError(
                f"constant_weights: received {type(model).__module__}.{type(model).__qualname__}, "
                "expected a tf_keras model; one of Keras 3 computes its weights in each call: "
                "leave constant_weights out, or pass sat_tf.from_keras3(model)."
            )
        self._layers = quantized_layers(model)
        if not self._layers:
            raise ValueError(
                f"constant_weights: {model.name!r} has no layer quantized by sat-tf; quantize it "
                "first, by sat_tf.quantize_model."
            )
        self._scope = model.distribute_strategy.scope

    @property
    def are_read(self) -> bool:
        """Whether the layers compute with the copies now."""
        return any(layer.constant_kernel is not None for layer in self._layers)

    def fill(self) -> None:
        """Copies the current effective kernels; from now on the layers read the copies."""
        with self._scope():
            for layer in self._layers:
                layer.copy_effective_kernel()

    def clear(self) -> None:
        """The layers compute their effective kernels again; the copies hold NaN."""
        for layer in self._layers:
            layer.forget_copy()


def quantized_layers(model: keras.Model) -> list[QuantizedLayer]:
    """The quantized layers of a model, at any depth."""
    return [module for module in model.submodules if isinstance(module, QuantizedLayer)]


@contextlib.contextmanager
def _own_functions(model: keras.Model) -> Iterator[None]:
    """Keeps what Keras traces inside apart from what it traces outside; both are reused later."""
    compiled = getattr(model, "compiled_loss", None)
    outside = {name: getattr(model, name) for name in _EVALUATING}
    training = model.train_function
    # `compile` makes Keras forget what it has traced.
    nothing: tuple[Any, dict[str, Any]] = (None, {})
    of_compiled, traced = getattr(model, _TRACED_INSIDE, nothing)
    for name in _EVALUATING:
        setattr(model, name, traced.get(name) if of_compiled is compiled else None)
    model.train_function = _refuse_to_train
    try:
        yield
    finally:
        traced = {name: getattr(model, name) for name in _EVALUATING}
        # Past Keras' own __setattr__, which would track it.
        object.__setattr__(model, _TRACED_INSIDE, (getattr(model, "compiled_loss", None), traced))
        for name, function in outside.items():
            setattr(model, name, function)
        model.train_function = training


def _refuse_to_train(*_: Any) -> NoReturn:
    raise RuntimeError(
        "constant_weights: the model is trained inside, where its weights must not change; train "
        "it outside."
    )
