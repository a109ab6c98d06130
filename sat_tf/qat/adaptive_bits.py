"""One set of latent weights for several bit widths (AdaBits, Jin et al., CVPR 2020)."""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import tensorflow as tf
import tf_keras as keras
from tf_keras.src.engine import compile_utils  # what `compile` makes; Keras has no public name

from sat_tf.arguments import is_integer
from sat_tf.either_keras import for_keras3
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.messages import ModelError
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.scheme import quantize_model
from sat_tf.qat.wrapper import graphs_go_with

_HIGHEST = 8
_STEPS = ("train_step", "test_step", "compute_loss", "compute_metrics")


@for_keras3(by="refused")
def quantize_for_bits(
    model: keras.Model, policy: BitPolicy | int | None = None, *, bits: Iterable[int] = (7, 6, 5, 4)
) -> "AdaptiveBits":
    """Quantizes a float Keras model at several bit widths at once, which share their weights.

    For each number of bits there is a quantized model with normalizations and clipping levels of
    its own (the paper's switchable ones); kernels and biases are the same variables in all of them.
    One training serves all, and each exports to a file of its own:

        adaptive = sat_tf.quantize_for_bits(model, policy, bits=(7, 5, 4))
        adaptive.compile("sgd", loss, metrics=["accuracy"])
        adaptive.fit(images, labels)
        sat_tf.export_tflite(adaptive.at_bits(4), "w4a4.tflite")

    With `weight_grid="nested"`, at 7 bits and fewer, the integers of fewer bits are the upper bits
    of those of more, so that a device that stores the 7-bit ones has all others by a shift. These
    are the weights in training: a file turns the sign of channels whose γ is negative, and where
    the normalizations of two widths disagree in a sign, so do their files. Other grids train as
    well, but each width has codes of its own.

    Args:
        model: see `quantize_model`; it is not changed.
        policy: the policy of all widths; its `weight_bits` and `activation_bits` are replaced by
            each of `bits`, unless they are None: activations then stay float. Overrides with bits
            of their own stay as they are, and so do the first and the last layer.
        bits: two different numbers or more, each 1 to 8.

    Raises:
        ValueError: bits as described are not given, or the model cannot be quantized.
    """
    policy = expect_policy(BitPolicy.mobile() if policy is None else policy).of_one_kind()
    are_several = isinstance(bits, Iterable) and not isinstance(bits, Mapping)
    received: list[Any] = list(bits) if are_several else [bits]
    are_bits = all(is_integer(width, lowest=1, limit=_HIGHEST + 1) for width in received)
    if not are_bits or len(set(received)) < max(2, len(received)):
        raise ValueError(
            f"quantize_for_bits: received bits={received}, expected two different integers or more "
            "from 1 to 8; pass (7, 5, 4), or call quantize_model for one alone."
        )
    members = {}
    bits_fields = ("weight_bits", "activation_bits")
    fields = [name for name in bits_fields if getattr(policy, name) is not None]
    for width in sorted(map(int, received), reverse=True):
        changes: dict[str, Any] = dict.fromkeys(fields, width)
        members[width] = quantize_model(model, dataclasses.replace(policy, **changes))
    # Training steps of a class of the user's would not be called.
    cls = type(next(iter(members.values())))
    if steps := [name for name in _STEPS if getattr(cls, name) is not getattr(keras.Model, name)]:
        raise ModelError(
            model.name,
            f"received a {cls.__name__} with {', '.join(steps)} of its "
            "own, expected a model that Keras trains: several widths have a step of their own; "
            "pass keras.Model(model.inputs, model.outputs).",
        )
    for width, member in members.items():
        # Files of weights name their parts by it; there is no public way to set it.
        member._name = f"{model.name}_at_{width}_bits"
    return AdaptiveBits(members, name=f"adaptive_{model.name}")


@keras.utils.register_keras_serializable(package="sat_tf")
class AdaptiveBits(keras.Model):
    """Quantized models of one network at several bit widths, which share kernels and biases.

    Its `members`, by their bits, are built from the same float model. Called, and in `predict`, it
    is the model with the most bits; `at_bits` has each width as a model of its own. A training step
    runs all of them on the same batch and takes one step of the optimizer with the sum of their
    gradients:

        g = Σ_b ∂L(f_b(x; W, θ_b), y) / ∂(W, θ_b),

    W shared, θ_b the normalizations, clipping levels and gains of width b. Regularizers of shared
    variables count once, in the loss of the most bits.

    Logs are those of `compile`'s loss and metrics for each width, with its bits after them, such
    as `accuracy_at_4`, and `loss`, the sum over the widths.
    """

    def __init__(self, members: Mapping[int, keras.Model], name: str = "adaptive") -> None:
        super().__init__(name=name)
        self._widths = tuple(sorted((int(width) for width in members), reverse=True))
        self.members = [members[width] for width in self._widths]
        for member in self.members[1:]:
            _share(self.members[0], member)
        self._total = keras.metrics.Mean("loss")
        self._losses_of: list[Any] = []
        self._metrics_of: list[Any] = []
        self._compiled_with: dict[str, Any] = {}
        self.built = True

    @property
    def bits(self) -> tuple[int, ...]:
        """The bit widths, most first."""
        return self._widths

    def at_bits(self, bits: int) -> keras.Model:
        """The model at one width, to calibrate, evaluate, export and verify like any other.

        It shares its variables: training one trains the kernels of all.

        Raises:
            ValueError: no model has these bits.
        """
        if bits not in self._widths:
            raise ValueError(
                f"at_bits: received {bits!r}, expected one of {', '.join(map(str, self._widths))}; "
                "quantize_for_bits(model, policy, bits=...) makes others."
            )
        return self.members[self._widths.index(bits)]

    def call(self, inputs: Any, training: Any = None) -> Any:
        """The output with the most bits."""
        return self.members[0](inputs, training=training)

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        **options: Any,
    ) -> None:
        """Compiles it like any Keras model; each width has metrics of its own.

        Raises:
            ValueError: a metric that cannot be created again for another width, or an optimizer of
                Keras' older kind.
        """
        if isinstance(optimizer, keras.optimizers.legacy.Optimizer):
            raise ValueError(
                f"compile: received {type(optimizer).__name__} of keras.optimizers.legacy, which "
                "has no gradients without a step; expected one of keras.optimizers; pass that."
            )
        by_name = {"metrics": metrics, "weighted_metrics": weighted_metrics}
        copies = [{name: _again(nested) for name, nested in by_name.items()} for _ in self.members]
        super().compile(optimizer=optimizer, **options)
        self._compiled_with = {"loss": loss, "loss_weights": loss_weights, **by_name}
        # Not the members' own `compile`: users compile these, to evaluate one width.
        names = [member.output_names for member in self.members]
        self._losses_of = [
            compile_utils.LossesContainer(loss, loss_weights, output_names=outputs)
            for outputs in names
        ]
        self._metrics_of = [
            compile_utils.MetricsContainer(**again, output_names=outputs)
            for again, outputs in zip(copies, names, strict=True)
        ]

    def get_compile_config(self) -> dict[str, Any]:
        """The settings that a saved model is compiled with when it is loaded."""
        config: dict[str, Any] = super().get_compile_config() or {}
        if not config:
            return config
        return {**config, **keras.saving.serialize_keras_object(self._compiled_with)}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with what `get_compile_config` has returned."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step on all widths."""
        graphs_go_with(self)
        return self._step(data, training=True)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Measures all widths on a batch."""
        return self._step(data, training=False)

    def _step(self, data: Any, *, training: bool) -> dict[str, Any]:
        images, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        gradients: dict[Any, tuple[tf.Tensor, tf.Variable]] = {}
        total = tf.constant(0.0)
        for member, loss_of, metrics_of in self._parts():
            with tf.GradientTape() if training else contextlib.nullcontext() as tape:
                outputs = member(images, training=training)
                loss = loss_of(labels, outputs, weights, regularization_losses=member.losses)
            total += tf.cast(loss, tf.float32)
            metrics_of.update_state(labels, outputs, weights)
            variables = member.trainable_variables
            pairs = self.optimizer.compute_gradients(loss, variables, tape) if training else ()
            for gradient, variable in pairs:
                if gradient is not None:
                    gradient = tf.convert_to_tensor(gradient)
                    if variable.ref() in gradients:
                        gradient += gradients[variable.ref()][0]
                    gradients[variable.ref()] = gradient, variable
        if training:
            self.optimizer.apply_gradients(list(gradients.values()))
        self._total.update_state(total * tf.distribute.get_strategy().num_replicas_in_sync)
        return self._results()

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The metrics of all widths, which `fit` resets every epoch."""
        containers = (container for _, *of_width in self._parts() for container in of_width)
        return [self._total, *(metric for container in containers for metric in container.metrics)]

    @property
    def metrics_names(self) -> list[str]:
        """The names of the logs, in the order of what `evaluate` returns."""
        return list(self._results())

    def _parts(self) -> list[tuple[keras.Model, Any, Any]]:
        """Each width's model, losses and metrics."""
        return list(zip(self.members, self._losses_of, self._metrics_of, strict=False))

    def _results(self) -> dict[str, Any]:
        results = {"loss": self._total.result()}
        for width, (_, loss_of, metrics_of) in zip(self._widths, self._parts(), strict=False):
            for metric in (*loss_of.metrics, *metrics_of.metrics):
                results[f"{metric.name}_at_{width}"] = metric.result()
        return results

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        members = {
            str(width): keras.saving.serialize_keras_object(member)
            for width, member in zip(self._widths, self.members, strict=True)
        }
        return {"name": self.name, "members": members}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Reads back what `get_config` wrote."""
        members = {
            int(width): keras.saving.deserialize_keras_object(member, custom_objects)
            for width, member in config["members"].items()
        }
        return cls(members, name=config["name"])


def _again(metric: Any) -> Any:
    """Metrics that are objects, created again, as one object counts for one width only."""
    if isinstance(metric, Mapping):
        return {name: _again(nested) for name, nested in metric.items()}
    if isinstance(metric, Sequence) and not isinstance(metric, str):
        return [_again(nested) for nested in metric]
    if not isinstance(metric, keras.metrics.Metric):
        return metric
    type_name, plain = type(metric).__name__, (bool, int, float, str)
    try:
        copy = type(metric).from_config(metric.get_config())
        settings = {name: value for name, value in vars(metric).items() if isinstance(value, plain)}
        lost = [name for name, value in settings.items() if getattr(copy, name, None) != value]
    except Exception as error:  # the user's constructor raises anything
        lost = [str(error)]
    if lost:
        raise ValueError(
            f"compile: received the metric {type_name}, which its get_config does not create again "
            f"({', '.join(lost)}), expected one that each width can have; implement get_config in "
            f"{type_name}, with all arguments of its constructor."
        )
    return copy


def _share(source_model: keras.Model, model: keras.Model) -> None:
    """Gives the layers of a model the variables of another's, except normalizations."""
    sources = {inner_layer(layer).name: inner_layer(layer) for layer in source_model.layers}
    problems = []
    for layer in model.layers:
        inner = inner_layer(layer)
        if layer_kinds.role_of(inner) is Role.NORM or not inner.variables:
            continue
        source = sources.get(inner.name)
        shapes = [tuple(variable.shape) for variable in inner.variables]
        if source is None or [tuple(variable.shape) for variable in source.variables] != shapes:
            problems.append(f"{inner.name}: received weights {shapes} in one model only")
            continue
        # A layer and those inside it come always in the same order.
        pairs = zip([*source._flatten_layers()], [*inner._flatten_layers()], strict=True)
        for from_part, to_part in pairs:
            for name, value in list(vars(from_part).items()):
                if isinstance(value, tf.Variable):
                    setattr(to_part, name, value)
            # Its regularizers hold the variables that it no longer has.
            to_part._callable_losses.clear()
    if problems:
        problems.append(
            "expected one network at several bit widths; build them with quantize_for_bits"
        )
        raise ModelError(model.name, problems)
