"""The curvature of the loss: the traces of its Hessian, and what quantization costs by them.

A kernel w of n values, moved by a small d, raises the loss by about ½ d·H d where its gradient is
small. With the mean curvature of a value for all of H, this is, up to the ½,

    cost = Tr(H) / n · |Q(w) - w|²

(HAWQ-V3, Yao et al. 2021), which needs no more than the trace. Hutchinson's estimate of it,

    Tr(H) = E[v · H v],   v of independent +1 and -1,

takes one product H v, by differentiating g · v once more. For activations, H is that of one image's
loss, and the mean over images is taken (HAWQ-V2, Dong et al. 2020).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.allocation.choices import Choice, ModelChoices
from sat_tf.analysis.labelled_images import LabelledImages, class_shares, labelled_images
from sat_tf.analysis.sensitivity import OneAtATime
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network, call_in_inference, layer_of_call
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.messages import first_ones, warn
from sat_tf.messages.progress_bar import image_bar
from sat_tf.qat.policy import BitPolicy

# What of the memory of a forward pass the gradients of gradients need beside it.
_TIMES_THE_MEMORY = 4
_MOST_BITS = 8


def hutchinson(
    loss: Callable[[], tf.Tensor], points: Sequence[Any], draw: np.random.Generator
) -> np.ndarray:
    """One estimate of the trace of each block of a loss's Hessian.

    All blocks are moved at once: what the others add to a block is 0 in the mean.

    Args:
        loss: a scalar, computed from `points`.
        points: variables or tensors, where the Hessian is taken.
        draw: of the signs.

    Returns:
        float64 (points,): v · (H v) summed over each of them.

    Raises:
        ValueError: the loss or its derivatives are NaN or infinite.

    >>> curvature = tf.constant([1.0, 2.0, 4.0])
    >>> point = tf.Variable([3.0, 5.0, 7.0])
    >>> half = lambda: tf.reduce_sum(curvature * point**2) / 2
    >>> hutchinson(half, [point], np.random.default_rng(0)).tolist()
    [7.0]
    """
    signs = [
        tf.constant(draw.choice((-1.0, 1.0), size=tuple(point.shape)), point.dtype)
        for point in points
    ]
    none = tf.UnconnectedGradients.ZERO
    with tf.GradientTape(watch_accessed_variables=False) as outer:
        outer.watch(points)
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(points)
            value = loss()
        gradients = inner.gradient(value, points, unconnected_gradients=none)
        along = tf.add_n(
            [
                tf.reduce_sum(gradient * sign)
                for gradient, sign in zip(gradients, signs, strict=True)
            ]
        )
    products = outer.gradient(along, points, unconnected_gradients=none)
    found = np.array(
        [
            float(tf.reduce_sum(tf.cast(product * sign, tf.float64)))
            for product, sign in zip(products, signs, strict=True)
        ]
    )
    for what, numbers in (
        ("loss", value.numpy()),
        ("gradients", along.numpy()),
        ("second derivatives", found),
    ):
        if not np.all(np.isfinite(numbers)):
            raise ValueError(
                f"the Hessian: received NaN or infinite {what}, expected finite ones; check the "
                "images, and the weights and statistics of the model."
            )
    return found


@dataclasses.dataclass(frozen=True)
class Traces:
    """The traces of the Hessian of a model's loss.

    Attributes:
        kernels: by layer.
        inputs: of the tensors that layers read, by layer; those that several read are shared out
            among them.
    """

    kernels: Mapping[str, float]
    inputs: Mapping[str, float]


def model_traces(
    model: keras.Model,
    sample: LabelledImages,
    kernels: Sequence[str],
    readers: Sequence[str],
    *,
    probes: int,
    seed: int,
    images_at_once: int,
    progress: bool = False,
) -> Traces:
    """The traces for kernels and for activations of a model, in inference mode.

    With labels, the loss is the mean cross entropy. Without them it is the divergence from the
    model's own classes where it ends in a softmax, else half the squared distance from its own
    output; their Hessians are never negative.

    Args:
        model: a flat float model.
        sample: images as the model is fed, with labels or without.
        kernels: the layers whose kernels are of interest.
        readers: the calls of layers whose inputs are.
        probes: how many directions to take for each batch.
        seed: of the directions.
        images_at_once: the size of a batch.
        progress: show a bar.

    Raises:
        ValueError: the loss or its derivatives are NaN or infinite; labels do not fit.
    """
    network = Network(model)
    variables = [_kernel(network, name) for name in kernels]
    reads: dict[str, list[str]] = {}
    for name in readers:
        reads.setdefault(network[name].inputs[0], []).append(name)
    draw = np.random.default_rng(seed)
    sums = np.zeros(len(variables) + len(reads))
    total = len(sample) * probes
    with image_bar("measuring the curvature", total, shown=progress) as advance:
        for images, labels in _batches(sample, images_at_once):
            run = _Loss(network, model, images, labels, reads)
            points = [*variables, *run.moves.values()]
            for _ in range(probes):
                sums += hutchinson(run, points, draw) * len(images)
                advance(len(images))
    means = sums / (len(sample) * probes)
    inputs = {
        name: float(mean) / len(names)
        for names, mean in zip(reads.values(), means[len(variables) :], strict=True)
        for name in names
    }
    return Traces(dict(zip(kernels, map(float, means), strict=False)), inputs)


def _kernel(network: Network, name: str) -> Any:
    layer = network[name].layer
    return getattr(layer, layer_kinds.kernel_name(layer))


def _batches(sample: LabelledImages, size: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    for first in range(0, len(sample), size):
        labels = None if sample.labels is None else sample.labels[first : first + size]
        yield sample.images[first : first + size], labels


class _Loss:
    """The mean loss of a batch, with the inputs of some layers moved.

    Attributes:
        moves: by tensor, what is added to it on its way to its readers: 0.
    """

    def __init__(
        self,
        network: Network,
        model: keras.Model,
        images: np.ndarray,
        labels: np.ndarray | None,
        reads: Mapping[str, Sequence[str]],
    ) -> None:
        self._network, self._reads = network, reads
        self._images = tf.cast(images, model.inputs[0].dtype)
        self.moves: dict[str, Any] = {}
        tensors = self._tensors()
        self._output = tensors[network.output]
        self._is_softmax = layer_kinds.is_softmax(network[network.output].layer)
        self._shares: Any = None
        if len(self._output.shape) == 2 and self._output.shape[1] > 1:
            if labels is not None:
                shares = class_shares(labels, int(self._output.shape[1]))
                self._shares = tf.cast(shares, self._output.dtype)
            elif self._is_softmax:
                self._shares = tf.stop_gradient(self._output)
        self.moves = {name: tf.zeros_like(tensors[name]) for name in reads}

    def __call__(self) -> tf.Tensor:
        output = self._tensors()[self._network.output]
        if self._shares is None:
            distances = tf.reduce_sum((output - self._output) ** 2, range(1, len(output.shape)))
            return tf.reduce_mean(distances) / 2
        if self._is_softmax:
            # A float32 softmax gives 0 below this.
            logs = tf.math.log(tf.maximum(output, output.dtype.as_numpy_dtype(1e-37)))
        else:
            logs = tf.nn.log_softmax(output)
        return -tf.reduce_mean(tf.reduce_sum(self._shares * logs, axis=1))

    def _tensors(self) -> dict[str, Any]:
        tensors: dict[str, Any] = {self._network.input: self._images}
        for node in self._network:
            if node.name not in tensors:
                inputs = [self._read(name, node.name, tensors) for name in node.inputs]
                tensors[node.name] = call_in_inference(node, node.layer, inputs)
        return tensors

    def _read(self, name: str, reader: str, tensors: Mapping[str, Any]) -> tf.Tensor:
        if name in self.moves and reader in self._reads[name]:
            return tensors[name] + self.moves[name]
        return tensors[name]


def hessian_costs(
    model: keras.Model,
    dataset: Any,
    choices: ModelChoices,
    fewest: BitPolicy,
    *,
    num_images: int = 256,
    probes: int = 4,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, dict[Choice, float]]:
    """The costs of choices by the traces and the rounding errors, as a table for `allocate`.

    Args:
        model: a float model.
        dataset: images as the model is fed, with labels or without.
        choices: that the table is about.
        fewest: the policy with the fewest bits of them.
        num_images: how many images to take at most.
        probes: how many directions to take for each batch.
        seed: of the directions.
        progress: show a bar.

    Raises:
        ValueError: see `model_traces`.
    """
    network = network_of_layers(model)
    flat = network.model
    sample = labelled_images(dataset, most=num_images)
    runner = OneAtATime(network, fewest, sample.images, progress=progress)
    layers = runner.layers
    names = {one.fields["name"]: layer_of_call(one.fields["name"]) for one in layers}
    kernels = {
        names[one.fields["name"]]: one.fields for one in layers if "weights" in one.quantizations
    }
    readers = {
        one.fields["name"]: one.fields for one in layers if "activations" in one.quantizations
    }
    traces = model_traces(
        flat,
        sample,
        list(kernels),
        list(readers),
        probes=probes,
        seed=seed,
        images_at_once=max(1, runner.images_at_once() // _TIMES_THE_MEMORY),
        progress=progress,
    )
    found = {**traces.inputs, **traces.kernels}
    _refuse_flat(found)
    _warn_of_negative_traces(found)
    errors = runner.activation_errors(sample.images[: runner.images_at_once()])
    weights: dict[str, dict[int | None, float]] = {}
    for name, one in kernels.items():
        bits = range(one["weight_bits"] or _MOST_BITS, _MOST_BITS + 1)
        trace = abs(traces.kernels[name])
        weights[name] = {b: trace * e for b, e in zip(bits, one["weight_errors"], strict=True)}
    activations: dict[str, dict[int | None, float]] = {}
    for call, one in readers.items():
        bits = range(one["activation_bits"] or _MOST_BITS, _MOST_BITS + 1)
        own = activations.setdefault(names[call], {})
        # No errors are known of a tensor that is 0 on all images, which loses nothing.
        own_errors = errors.get(call) or (0.0,) * len(bits)
        for number, error in zip(bits, own_errors, strict=True):
            own[number] = own.get(number, 0.0) + abs(traces.inputs[call]) * error
    costs: dict[str, dict[Choice, float]] = {}
    for layer in choices.layers:
        of_weights = weights[layer.name] if layer.chooses_weights else {}
        of_activations = activations[layer.name] if layer.chooses_activations else {}
        costs[layer.name] = {
            (own, read): of_weights.get(own, 0.0) + of_activations.get(read, 0.0)
            for own, read in layer.choices
        }
    return costs


def _refuse_flat(traces: Mapping[str, float]) -> None:
    """Raises ValueError where no layer has any curvature, by which all bits would cost the same."""
    if traces and not any(traces.values()):
        raise ValueError(
            "the Hessian: received a loss whose Hessian has the trace 0 for every layer, "
            "expected curvature: the model is so certain of its classes that float32 knows no "
            "other, or a kernel on the way is all 0. Give other images or weights."
        )


def _warn_of_negative_traces(traces: Mapping[str, float]) -> None:
    negative = [name for name, trace in traces.items() if trace < 0.0]
    if negative:
        warn(
            f"the Hessian: the trace of {first_ones(negative)} is negative, and its magnitude "
            "is taken: the model is at no minimum of the loss on these images, or there are too "
            "few directions. Train further, or give more images or more probes."
        )
