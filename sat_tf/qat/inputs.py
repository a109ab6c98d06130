"""The inputs of a quantized model: their ranges, folded into the layers that read them; borders."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.tflite.input_range import INPUT_TYPES, KEPT_TYPES, PIXELS, Change, InputRange
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Kernel, Role
from sat_tf.graph.network import Network, Node
from sat_tf.messages import LayerMessage, did_you_mean, first_ones
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import output_quantizer
from sat_tf.quantizers.protocol import PixelQuantizer
from sat_tf.quantizers.seen_values import each_its_own


def input_nodes(network: Network) -> dict[str, Node]:
    """The layer that holds the quantizer of each input, by its name; kept ones have none."""
    nodes = {}
    for node in network:
        quantizer = output_quantizer(node.layer)
        if quantizer is not None and quantizer.input_type is not None:
            # It may stand after preprocessing in float.
            image = network.origin(node.inputs[0], lambda maker: maker.name not in network.inputs)
            nodes[image.name] = node
    return nodes


def input_ranges(network: Network) -> dict[str, InputRange]:
    """The input range of each image input."""
    nodes, kept_names = input_nodes(network), kept_inputs(network)
    ranges = {}
    for name in network.inputs:
        quantizer = output_quantizer(nodes[name].layer) if name in nodes else None
        if name in kept_names:
            continue
        if quantizer is None:
            ranges[name] = PIXELS
        elif isinstance(quantizer, PixelQuantizer):
            ranges[name] = quantizer.range
    return ranges


def input_types(network: Network) -> dict[str, str]:
    """The type of each input in the file: one of `INPUT_TYPES`, or its own where it is kept."""
    nodes = input_nodes(network).items()
    return {
        **dict.fromkeys(network.inputs, "uint8"),
        **{name: own_type(network[name]) for name in kept_inputs(network)},
        **{name: node.layer.quantize_config.output.input_type for name, node in nodes},
    }


def kept_inputs(network: Network) -> frozenset[str]:
    """The inputs that only layers left float and tables read; all inputs of a float model."""
    marked = input_nodes(network)
    return frozenset(
        name
        for name in network.inputs
        if name not in marked and network.consumers(name) and _is_read_as_it_is(network, name)
    )


def _is_read_as_it_is(network: Network, name: str) -> bool:
    for reader in network.consumers(name):
        config = getattr(reader.layer, "quantize_config", None)
        layer = reader.layer if config is None else reader.layer.layer
        if reads_floats(layer):
            continue
        if config is not None and (config.weights is not None or config.output is not None):
            return False
        passes_on = layer_kinds.role_of(layer).keeps_codes
        if passes_on and not _is_read_as_it_is(network, reader.name):
            return False
    return True


def reads_floats(layer: keras.layers.Layer) -> bool:
    """Whether files compute a layer in float, though its output may be quantized."""
    is_function = layer_kinds.role_of(layer) is Role.FUNCTION
    return is_function and not layer_kinds.works_on_each_value(layer)


def own_type(node: Node) -> str:
    """The type that a file has for an input that it takes as it is."""
    lower = node.type in (tf.float16, tf.bfloat16)  # files compute in float32
    return "float32" if lower else str(node.type.name)


def takes_pixels(network: Network) -> bool:
    """Whether the file of a quantized model takes uint8 pixels, and nothing else."""
    return not kept_inputs(network) and set(input_types(network).values()) == {"uint8"}


def converts_pixels(network: Network, name: str) -> bool:
    """Whether the first layers of a float model convert an input's pixels to other values."""
    readers = (layer_kinds.role_of(node.layer) for node in network.consumers(name))
    return any(role in (Role.AFFINE, Role.SCALING) for role in readers)


@dataclasses.dataclass(frozen=True, eq=False)
class Fold:
    """A change that one layer folds: value c of its input is ratio[c] · p[order[c]] + shift[c]."""

    ratio: np.ndarray  # Float64, one for each value of the last axis.
    shift: np.ndarray  # Likewise.
    order: np.ndarray  # The index in p of each value.
    layer: str = ""  # Name of the layer in the float model.
    norms: tuple[str, ...] = ()  # The normalizations that fold the shift if the layer has no bias.

    @classmethod
    def of_channels(cls, change: Change, channels: int) -> "Fold":
        """The same change channel by channel."""
        ratio, shift = (
            np.array(np.broadcast_to(v, channels)) for v in (change.ratio, change.shift)
        )
        order = np.arange(channels)
        return cls(ratio, shift, order[::-1] if change.reverses else order)

    @property
    def keeps_order(self) -> bool:
        """Whether the values stay where they are."""
        return bool(np.all(self.order == np.arange(self.order.size)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fold) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("ratio", "shift", "order")
        )


class _NoFoldError(Exception):
    """A layer cannot fold a change; the message says why."""


def range_problems(network: Network, policy: BitPolicy, kept: Collection[str]) -> list[str]:
    """Why the inputs of a float model cannot be what a policy makes of them."""
    problems = []
    for kind in ("range", "type"):
        stated = getattr(policy, f"input_{kind}")
        problems += [
            f"input_{kind}: received a {kind} for {name!r}, expected names of inputs. "
            f"{did_you_mean(name, network.inputs)}"
            for name in (stated if isinstance(stated, Mapping) else ())
            if name not in network.inputs
        ]
    problems += [
        LayerMessage(
            name,
            f"received an input of shape {network[name].shape} for {policy.processor.title}, which "
            "takes constant shapes, expected sizes; call sat_tf.export.with_image_size(model, "
            "(rows, columns)) on the float model first.",
        )
        for name in network.inputs
        if policy.processor.native and None in network[name].shape
    ]
    changes = {}
    for name in network.inputs:
        if name in kept:
            texts = _problems_of_kept(network, name, policy, kept)
            problems += [LayerMessage(name, text) for text in texts]
            continue
        pixels, shape, kind = policy.range_of(name), network[name].shape, policy.type_of(name)
        if kind != INPUT_TYPES[0]:
            if policy.states_range_of(name):
                text = (
                    f"received input_type={kind!r} and input_range={pixels}, expected one of them: "
                    "the range of an input that is not an image is taken from data; leave "
                    f"input_range out{each_its_own(network.inputs, name)}."
                )
                problems.append(LayerMessage(name, text))
        elif pixels.channels is not None and (not shape or shape[-1] != pixels.channels):
            text = (
                f"received input_range={pixels} of {pixels.channels} channels for the input shape "
                f"{shape}, expected one of as many channels as the input; give each input its own, "
                'as {"name": range}.'
            )
            problems.append(LayerMessage(name, text))
        else:
            changes[name] = pixels.change
    return problems + find_folds(network, changes)[1]


def _problems_of_kept(
    network: Network, name: str, policy: BitPolicy, kept_names: Collection[str]
) -> Iterator[str]:
    """Why an input without codes cannot stay as it is."""
    input_type = own_type(network[name])
    if input_type not in KEPT_TYPES:
        yield (
            f"received an input of {input_type}, expected one of {', '.join(KEPT_TYPES)}, which "
            "files can take; compute them in front of the model."
        )
    # A setting for all inputs is meant for the others.
    has_quantized = len(kept_names) < len(network.inputs)
    for_all = not any(isinstance(v, Mapping) for v in (policy.input_type, policy.input_range))
    if states_codes(network[name], policy) and not (has_quantized and for_all):
        yield (
            "received an input_type or an input_range for an input whose readers take it for ids, "
            "of which codes would make others, expected neither: it stays "
            f"{input_type}, as it is; leave them out."
        )


def states_codes(node: Node, policy: BitPolicy) -> bool:
    """Whether a policy says of an input that it is pixels, or becomes codes."""
    is_other = policy.type_of(node.name) != own_type(node)
    return policy.states_range_of(node.name) or (policy.states_type_of(node.name) and is_other)


def entrance(network: Network, name: str, policy: BitPolicy) -> str:
    """The tensor that is quantized in place of an input, after preprocessing done in float."""
    while (
        policy.type_of(name) == "float32" or layer_kinds.role_of(network[name].layer) is Role.AFFINE
    ):
        readers = network.consumers(name)
        if len(readers) != 1 or layer_kinds.role_of(readers[0].layer) is not Role.AFFINE:
            break
        next_readers = network.consumers(readers[0].name)
        roles = (Role.NORM, Role.RECTIFIER, Role.SCALING)
        if (
            name in network.outputs
            or not next_readers
            or any(layer_kinds.role_of(reader.layer) in roles for reader in next_readers)
        ):
            break
        name = readers[0].name
    return name


def find_folds(network: Network, changes: Mapping[str, Change]) -> tuple[list[Fold], list[str]]:
    """The changes, from what is read to what was, that readers of inputs fold; why some cannot."""
    folds, problems = [], list[str]()
    by_layer: dict[int, list[tuple[Node, Fold | None, Change]]] = {}
    for name, change in changes.items():
        shape = network[name].shape
        if not change.is_none:
            has_channels = bool(shape) and shape[-1] is not None
            input_fold = Fold.of_channels(change, int(shape[-1] or 0)) if has_channels else None
            for node, fold in _readers(network, name, input_fold):
                by_layer.setdefault(id(node.layer), []).append((node, fold, change))
    for readers in by_layer.values():
        node, fold, change = readers[0]
        calls = {call.name for call in network.calls(node.name)}
        try:
            alike = all(reader_fold == fold for _, reader_fold, _ in readers)
            if fold is None or not alike or calls != {reader.name for reader, _, _ in readers}:
                raise _NoFoldError("it also reads other tensors, or in another order")
            folds.append(_at(network, node, fold))
        except _NoFoldError as error:
            if not change.is_rounding:
                text = (
                    "received an input_range that differs between channels, or is far from real 0, "
                    f"which this {type(node.layer).__name__} cannot fold into its weights "
                    f"({error}); leave input_range out, and put a Rescaling or a Normalization "
                    "layer that does the same in front of it."
                )
                problems.append(LayerMessage(node.name, text))
    return folds, problems


def apply_fold(
    fold: Fold,
    layer: keras.layers.Layer,
    norms: Sequence[keras.layers.Layer],
    kernel: np.ndarray | None = None,
) -> None:
    """Makes a layer, of an effective kernel, and the normalizations after it read p."""
    if layer_kinds.is_batch_normalization(layer):
        mean, variance = layer.moving_mean.numpy(), layer.moving_variance.numpy()
        layer.moving_mean.assign((mean - fold.shift) / fold.ratio)
        layer.moving_variance.assign((variance + layer.epsilon) / fold.ratio**2 - layer.epsilon)
        return
    variable = layer_kinds.kernel_of(layer)
    values = np.asarray(variable.numpy() if kernel is None else kernel, np.float64)
    if np.any(fold.shift):
        outputs = layer_kinds.find_support(layer).channel_axes
        summed = tuple(axis for axis in range(values.ndim) if axis not in outputs)
        moved = np.sum(values * _along(layer, fold.shift, values.shape), axis=summed).reshape(-1)
        if getattr(layer, "bias", None) is not None:
            layer.bias.assign(layer.bias.numpy() + moved)
        for norm in norms:
            norm.moving_mean.assign(norm.moving_mean.numpy() - moved)
    if np.any(fold.ratio != 1.0) or not fold.keeps_order:
        values = values * _along(layer, fold.ratio, values.shape)
        axis = _kernel(layer).input_axis
        where = np.argsort(fold.order)  # value order[c] of p was value c
        variable.assign(values if fold.keeps_order else np.take(values, where, axis))


def _readers(network: Network, name: str, fold: Fold | None) -> Iterator[tuple[Node, Fold | None]]:
    """All layers that compute with an input, and its change in the order in which they read it."""
    for node in network.consumers(name):
        if layer_kinds.is_identity(node.layer, node.arguments):
            yield from _readers(network, node.name, fold)
        elif layer_kinds.role_of(node.layer) is Role.MOVEMENT:
            yield from _readers(network, node.name, _moved(node, fold))
        else:
            yield node, fold


def _moved(node: Node, fold: Fold | None) -> Fold | None:
    """The change after a layer of data movement; None if sat-tf does not follow it."""
    support = layer_kinds.find_support(node.layer)
    if fold is None or support.keeps_channels:
        return fold
    size = node.shape[-1] if node.shape else None
    if size is None:
        return None
    alike = np.all(fold.shift == fold.shift[0]) and np.all(fold.ratio == 1.0)
    if alike and fold.keeps_order:
        return Fold.of_channels(Change(np.ones(1), fold.shift[:1]), size)
    if support.reshapes and size % fold.order.size == 0:
        pixels = size // fold.order.size
        offsets = np.repeat(np.arange(pixels) * fold.order.size, fold.order.size)
        ratio, shift, order = (np.tile(v, pixels) for v in (fold.ratio, fold.shift, fold.order))
        return Fold(ratio, shift, offsets + order)
    return None


def _at(network: Network, node: Node, fold: Fold) -> Fold:
    """The change as a layer folds it."""
    layer = node.layer
    if layer_kinds.role_of(layer) is Role.NORM and fold.keeps_order:
        return dataclasses.replace(fold, layer=layer.name)
    kernel = layer_kinds.quantized_kernel(layer)
    if kernel is None or not kernel.folds_inputs:
        raise _NoFoldError("it has no kernel")
    if np.any(fold.shift) and kernel.transposed:
        raise _NoFoldError("its outputs sum different numbers of products")
    # Every output is made of all inputs, unless the layer is depthwise or in groups.
    mixes_channels = not _kernel(layer).depthwise and getattr(layer, "groups", 1) == 1
    if not fold.keeps_order and not mixes_channels:
        raise _NoFoldError("its outputs have the order of its inputs")
    if not np.any(fold.shift) or getattr(layer, "bias", None) is not None:
        return dataclasses.replace(fold, layer=layer.name)
    norms = norms_behind(network, node, lambda norm: layer_kinds.role_of(norm.layer) is Role.NORM)
    if not norms:
        raise _NoFoldError("it has no bias, and other than BatchNormalization after it")
    return dataclasses.replace(fold, layer=layer.name, norms=norms)


def norms_behind(network: Network, node: Node, is_norm: Callable[[Node], bool]) -> tuple[str, ...]:
    """The layers that normalize what a linear layer makes at every call, and read nothing else."""
    readers = network.only_readers(node.name)
    plain = layer_kinds.activation_name(node.layer) == "linear"
    if not plain or not all(map(is_norm, readers)):
        return ()
    return tuple(dict.fromkeys(reader.layer.name for reader in readers))


def _kernel(layer: keras.layers.Layer) -> Kernel:
    """The kernel of a layer that folds changes."""
    return layer_kinds.kernels_of(layer)[0]


def _along(layer: keras.layers.Layer, values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """One number for each value of the input, as broadcastable to the kernel."""
    axis, groups = _kernel(layer).input_axis, getattr(layer, "groups", 1)
    if groups > 1 and not _kernel(layer).depthwise:
        # Each group of outputs reads its own inputs.
        group_values = np.repeat(values.reshape(groups, -1).T, shape[-1] // groups, axis=1)
        return group_values.reshape([1] * axis + list(group_values.shape))
    return values.reshape([-1 if index == axis else 1 for index in range(len(shape))])


# Layers pad with real 0. Kernels on integers pad with the zero point, which is one pixel for all
# channels, the nearest to their zeros: where 0 is no pixel of the range, as in (1, 2), or another
# one in each channel, the file and the quantized Keras model pad images with another value than the
# float model does. How far that moves the answers is measured here, on the float model.
_IMAGES = 4
# Pictures change slowly: neighbours have one value.
_SAME_BESIDE = 3
# Below these shares of a standard deviation, errors are as small as those of rounding to 8 bits,
# and to float32.
SMALL_ERROR, _NONE = 0.05, 1e-4


class AnotherBorderWarning(UserWarning):
    """A quantized model pads its images with another value than 0."""


@dataclasses.dataclass(frozen=True)
class Border:
    """The border of an input's images, where it is not 0."""

    range: InputRange  # The range of the pixels.
    layers: tuple[str, ...]  # The layers that pad the input, or else read what another has padded.
    # The error of outputs by the border: the root mean square, in standard deviations, of the
    # output that is off most.
    error: float

    def __str__(self) -> str:
        values = dict.fromkeys(f"{value:.3g}" for value in self.range.change.shift)
        return (
            f"{first_ones(self.layers)} pads with ({', '.join(values)}) instead of 0, which is no "
            f"pixel of all channels: outputs are off by {self.error:.2g} standard deviations"
        )


BORDER_FIX = (
    "give the layer padding='valid'; or feed the model images of a range that holds 0; or leave "
    "input_range at (0, 255) and put a Rescaling or a Normalization in front that makes this range "
    "of pixels, which are then rounded to 8 bits from 0 on"
)


def borders(network: Network, ranges: Mapping[str, InputRange]) -> list[Border]:
    """Returns the borders that are not 0 in the file of a float model, by ranges, with their error.

    The file's first layers read an image without the shift of its range, which they have in their
    biases: the float model does so here, and its weights are then as before.
    """
    changes = {}
    for name, pixels in ranges.items():
        shape, change = network[name].shape, pixels.change
        fits = pixels.channels is None or (bool(shape) and shape[-1] == pixels.channels)
        if np.any(change.shift) and not change.is_rounding and None not in shape and fits:
            changes[name] = Change(np.ones(1), change.shift)
    folds, problems = find_folds(network, changes)
    if problems or not folds:
        return []
    layers = {node.layer.name: node.layer for node in network}
    reading = tuple(dict.fromkeys(fold.layer for fold in folds))
    padding = tuple(
        name for name in reading if getattr(layers[name], "padding", "valid") != "valid"
    )
    reads = {node.name for node in network if node.layer.name in reading}
    if not padding and all(set(network.inputs).issuperset(network[name].inputs) for name in reads):
        return []  # nothing pads
    # An image that is only moved is an output with its shift, as before.
    names = [
        name for name in network.outputs if not reads.isdisjoint({name, *network.before(name)})
    ]
    images = {name: _images(network[name].shape, ranges.get(name)) for name in network.inputs}
    expected = _outputs(network, images, names)
    shifted = {name: images[name] - np.float32(change.shift) for name, change in changes.items()}
    folded = [layers[name] for fold in folds for name in (fold.layer, *fold.norms)]
    before = [(variable, variable.numpy()) for layer in folded for variable in layer.variables]
    try:
        for fold in folds:
            apply_fold(fold, layers[fold.layer], [layers[norm] for norm in fold.norms])
        moved = _outputs(network, images | shifted, names)
    finally:
        for variable, value in before:
            variable.assign(value)
    pairs = zip(moved, expected, strict=True)
    errors = (np.sqrt(np.mean((a - b) ** 2)) / (np.std(b) or np.inf) for a, b in pairs)
    error = float(max(errors, default=0.0))
    fed = dict.fromkeys(ranges[name] for name in changes)
    return [Border(pixels, padding or reading, error) for pixels in fed] if error > _NONE else []


def _images(shape: tuple[int | None, ...], pixels: InputRange | None) -> np.ndarray:
    """Coarse noise, in the range of the input if it is images."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (_IMAGES, *(size or 1 for size in shape)), np.uint8)
    for axis in range(1, len(shape)):
        coarse = np.repeat(coarse, _SAME_BESIDE, axis=axis).take(range(shape[axis - 1] or 1), axis)
    return coarse / np.float32(255.0) if pixels is None else pixels.fed(coarse)


def _outputs(
    network: Network, images: Mapping[str, np.ndarray], names: Sequence[str]
) -> list[np.ndarray]:
    tensors = {name: tf.cast(image, network[name].type) for name, image in images.items()}
    by_name = dict(network.computed(tensors, names))
    return [by_name[name].numpy().astype(np.float64) for name in names]
