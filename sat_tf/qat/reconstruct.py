"""Reconstruction: latent weights and clipping levels fitted to the float model, without labels."""

import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf.arguments import is_integer
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network, Node
from sat_tf.messages import list_problems, say
from sat_tf.presentation.progress_bar import Advance, image_bar
from sat_tf.presentation.tables import Column, RowTable, Table, digits, percent
from sat_tf.qat.blocks import Block, Front, Span, computed, find_blocks, find_reference
from sat_tf.qat.calibrate import Images, gather, in_batches, observe_ranges
from sat_tf.qat.layout import quantized_network
from sat_tf.qat.model_class import processor_of
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.settings import COUNT
from sat_tf.top_k import classes_of

_FEWEST_IMAGES = 32
# One image in so many is not fitted to, and tells whether a fit has helped.
_HELD_OUT = 5
_BATCH_SIZE = 32
_MEASURED_AT_ONCE = 64


class _Plan(NamedTuple):
    """The way of one fit by Adam, whose rate falls to 0 by a cosine.

    Attributes:
        steps: as multiples of those of a block.
        rate: of the first step.
        measured: how often the error of the held-out images is measured.
        patience: how many measurements in a row may bring nothing before it ends.
    """

    steps: int
    rate: float
    measured: int
    patience: int


_BLOCK = _Plan(steps=1, rate=1e-3, measured=5, patience=5)
_WHOLE = _Plan(steps=3, rate=3e-3, measured=15, patience=5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockFit:
    """The error of a block before it was fitted and afterwards, on the held-out images.

    Attributes:
        block: the last layer of the block; "" for the whole network.
        layers: how many layers were fitted.
        error_before: of its output, |B(x̂) - B_float(x)|² / |B_float(x)|², before it was fitted.
        error_after: afterwards; the same where nothing was kept.
        seconds: that it took.
    """

    block: str
    layers: int
    error_before: float
    error_after: float
    seconds: float

    @property
    def kept(self) -> bool:
        """Whether the fit has helped, and was kept."""
        return self.error_after < self.error_before


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Reconstruction(RowTable):
    """The errors of a model before and after `reconstruct`, on the images that were held out.

    Attributes:
        model: its name.
        blocks: in order; the last is the whole network.
        error_before: of the outputs, |y - y_float|² / |y_float|², of the calibrated model.
        error_after: of the model that was kept.
        agreement_before: share of places where the largest number of an output is that of the float
            model, as classes are told; None for outputs of one number.
        agreement_after: of the model that was kept.
        num_images: how many images were used.
        held_out: how many of these were not fitted to.
        seconds: that it took.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("block", "layers", "error_before", "error_after", "kept", "seconds"),
    )

    model: str
    blocks: tuple[BlockFit, ...]
    error_before: float
    error_after: float
    agreement_before: float | None
    agreement_after: float | None
    num_images: int
    held_out: int
    seconds: float

    @property
    def kept(self) -> bool:
        """Whether the model has changed; it has not where nothing made its outputs better."""
        return any(one.kept for one in self.blocks) and self.error_after < self.error_before

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each block."""
        return [{name: getattr(block, name) for name in self.COLUMNS} for block in self.blocks]

    def print_to(self, console: Console) -> None:
        """Prints what the model has gained, and the errors of every block."""
        say(console, self._headline())
        for title, table in self._tables().items():
            console.print(table.to_rich(title=title, title_justify="left"))

    def _headline(self) -> str:
        line = f"{self.model}: error of the outputs {self.error_before:.3g}"
        line += (
            f" to {self.error_after:.3g}" if self.kept else ", as calibrated: nothing was better"
        )
        if self.agreement_before is not None:
            share = percent(1)
            line += f", answers of the float model {share(self.agreement_before)}"
            line += f" to {share(self.agreement_after)}" if self.kept else ""
        return f"{line}, on {self.held_out} held-out images; {self.seconds:.0f} s"

    def _tables(self) -> dict[str, Table[BlockFit]]:
        number = digits(".3g")
        columns: list[Column[BlockFit]] = [
            Column("block up to", lambda one: one.block or "the whole network", wrap="fold"),
            Column("layers", lambda one: one.layers, number=True),
            Column("error", lambda one: one.error_before, number, number=True),
            Column("fitted", lambda one: one.error_after, number, number=True),
            Column("kept", lambda one: "yes" if one.kept else "no"),
            Column("time", lambda one: one.seconds, digits(".1f"), unit="(s)", number=True),
        ]
        title = "squared error of each block's output, relative to that of the float model"
        return {title: Table(columns=columns, rows=self.blocks)}


def reconstruct(
    model: keras.Model,
    float_model: keras.Model,
    dataset: Any,
    *,
    num_images: int = 512,
    steps: int = 200,
    seed: int = 0,
    progress: bool = True,
) -> Reconstruction:
    """Fits a calibrated model to its float model, block by block, without labels.

    For each block B in order, Adam fits its latent weights W, its biases, the γ and β of its
    normalizations, and its clipping levels α:

        min Σ |B(x̂; W, α) - B_float(x)|² / Σ |B_float(x)|²,

    where x̂ is what the quantized blocks in front put out, and x what those of the float model do. A
    block ends at a tensor that all later layers depend on: in a chain it is a linear layer with its
    normalization and its activation; around a residual connection, all that is between two sums.
    At the end the whole network is fitted to the outputs of the float model: to the same error and,
    where an output is a row of logits or probabilities, to the divergence KL(p_float || p).

    This is the objective of AdaRound and BRECQ with the quantizers that the model has: its latent
    weights are the soft rounding. All is computed as in inference, with the statistics of
    BatchNormalization as they are. In the end the ranges of outputs are observed anew.

    One image in five is held out. A fit is kept only if it makes their error smaller, and none is
    kept unless that of the outputs is: the model is never worse on them than it was. Layers that
    are frozen or left float stay as they are. The same seed gives the same model.

    Args:
        model: a model quantized by sat-tf and calibrated, or trained; it is changed in place.
        float_model: the model that it was made from.
        dataset: images, as `calibrate` takes them; labels are not used. 200 are enough to gain
            from, and more are better.
        num_images: how many to use at most. In memory are the tensors of all of them that one block
            reads and makes, each above 256 MiB in a temporary file.
        steps: of Adam for a block, with 32 images each; the whole network gets at most three times
            as many.
        seed: of the choice of the held-out images and the order of the others.
        progress: show a bar if it takes more than two seconds, on a terminal or in a notebook.

    Returns:
        A `Reconstruction`: the errors of each block before and after, to be printed (`table`) or
        exported (`to_rows`, `write_csv`).

    Raises:
        ValueError: the model is not quantized by sat-tf, not calibrated, or not made from the float
            model; all of its layers are frozen; the images are fewer than 32, are non-finite, or do
            not fit its input. Lists every problem. The model has not changed.
    """
    network = quantized_network(model, when="first")
    reference, problems = find_reference(network, float_model, processor_of(model))
    problems += _not_ready(network)
    problems += [
        f"{name}: received {value!r}, expected an integer of {lowest} or more; leave it out."
        for name, value, lowest in (("steps", steps, 1), ("seed", seed, 0))
        if not is_integer(value, lowest=lowest)
    ]
    images: Images = ()
    try:
        images = gather(dataset, num_images, network)
    except ValueError as error:
        problems.append(str(error))
    if images and len(images[0]) < _FEWEST_IMAGES:
        problems.append(
            f"dataset: received {len(images[0])} images, expected {_FEWEST_IMAGES} or more, of "
            "which one in five is held out; give 200 or more."
        )
    if problems or reference is None:
        raise ValueError(list_problems("reconstruct", problems))
    start = model.get_weights()
    try:
        return _Reconstructor(network, reference, images, seed).run(model, steps, shown=progress)
    except BaseException:  # also an interruption
        model.set_weights(start)
        raise


def _not_ready(network: Network) -> list[str]:
    """Why a quantized model cannot be fitted."""
    layers = [node.layer for node in network if isinstance(node.layer, QuantizedLayer)]
    problems = []
    if any(float(layer.output_variables.get(COUNT, 1.0)) == 0.0 for layer in layers):
        problems.append(
            f"model {network.name!r}: received a model that has seen no images, expected one that "
            "is calibrated; call sat_tf.calibrate(model, images) first."
        )
    if any(layer.constant_kernel is not None for layer in layers):
        problems.append(
            f"model {network.name!r}: received a model with constant weights, expected one whose "
            "weights may change; call reconstruct outside of constant_weights."
        )
    if not _trained(layers):
        problems.append(
            f"model {network.name!r}: received a model whose quantized layers are all frozen, "
            "expected some to fit; set layer.trainable = True."
        )
    return problems


def _trained(layers: Iterable[keras.layers.Layer]) -> list[tf.Variable]:
    """The variables that are fitted: those of quantized layers that training would change."""
    found = {
        id(variable): variable
        for layer in layers
        if isinstance(layer, QuantizedLayer)
        for variable in layer.trainable_variables
    }
    return list(found.values())


class _Reconstructor:
    """One reconstruction.

    Args:
        network: of the quantized model.
        reference: of the float model, in which layers have the names of those inside quantized
            ones.
        images: an array for each input.
        seed: of all that is drawn.
    """

    def __init__(self, network: Network, reference: Network, images: Images, seed: int) -> None:
        self._network, self._reference, self._images = network, reference, images
        self._draw = np.random.default_rng(seed)
        order = self._draw.permutation(len(images[0]))
        self._held_out, self._fitted = np.split(order, [len(order) // _HELD_OUT])

    def run(self, model: keras.Model, steps: int, *, shown: bool) -> Reconstruction:
        """Fits the model.

        Args:
            model: whose network it is.
            steps: for a block.
            shown: whether there may be a bar.
        """
        begin, start = time.monotonic(), model.get_weights()
        blocks = find_blocks(self._network, self._reference)
        whole = self._whole()
        before, answers = whole.errors(self._held_out), whole.agreement(self._held_out)
        total = (_BLOCK.steps + _WHOLE.steps) * steps * len(whole.span.nodes)
        with image_bar("reconstructing", total, shown=shown) as advance:
            found = [*self._fit_blocks(blocks, steps, advance)]
            if not whole.is_better(whole.errors(self._held_out), before):
                model.set_weights(start)
            found.append(self._fit(whole, "", _WHOLE, steps, advance))
        observe_ranges(self._network, in_batches(self._images), of_inputs=False)
        after = whole.errors(self._held_out)
        if not whole.is_better(after, before):
            model.set_weights(start)
            after = before
        return Reconstruction(
            model=model.name,
            blocks=tuple(found),
            error_before=float(before[0]),
            error_after=float(after[0]),
            agreement_before=answers,
            agreement_after=whole.agreement(self._held_out),
            num_images=len(self._images[0]),
            held_out=len(self._held_out),
            seconds=time.monotonic() - begin,
        )

    def _whole(self) -> "_Part":
        """The whole network, fitted to the outputs of the float model."""
        network, reference = self._network, self._reference
        beside = Front(reference, self._images)
        beside.advance(beside.up_to(reference.outputs), keep=reference.outputs)
        aims = {
            made: _Aim(beside.tensors[name], _rows_of(reference[name]))
            for made, name in zip(network.outputs, reference.outputs, strict=True)
        }
        return _Part(Front(network, self._images).up_to(network.outputs), aims)

    def _fit_blocks(
        self, blocks: Sequence[Block], steps: int, advance: Advance
    ) -> Iterable[BlockFit]:
        """Fits one block after the other."""
        front, beside = Front(self._network, self._images), Front(self._reference, self._images)
        seen: set[int] = set()
        for block in blocks:
            wanted, span = beside.up_to([block.reference]), front.up_to([block.node])
            beside.advance(wanted, keep=[block.reference, *self._reference.outputs])
            aims = {block.node: _Aim(beside.tensors[block.reference])}
            yield self._fit(
                _Part(span, aims, without=seen), block.reference, _BLOCK, steps, advance
            )
            seen |= {id(node.layer) for node in span.nodes}
            front.advance(span)

    def _fit(self, part: "_Part", name: str, plan: _Plan, steps: int, advance: Advance) -> BlockFit:
        begin = time.monotonic()
        before = after = part.errors(self._held_out)
        if part.variables:
            after = self._search(part, before, plan, plan.steps * steps, advance)
        return BlockFit(
            block=name,
            layers=part.layers,
            error_before=float(before[0]),
            error_after=float(after[0]),
            seconds=time.monotonic() - begin,
        )

    def _search(
        self, part: "_Part", before: np.ndarray, plan: _Plan, steps: int, advance: Advance
    ) -> np.ndarray:
        """Fits a part, and gives it the values with the smallest error; returns that error."""
        best, values, in_vain = before, [one.numpy() for one in part.variables], 0
        step = part.step(keras.optimizers.schedules.CosineDecay(plan.rate, steps))
        every, order = max(1, steps // plan.measured), np.array([], int)
        for done in range(1, steps + 1):
            if len(order) < min(_BATCH_SIZE, len(self._fitted)):
                order = self._draw.permutation(self._fitted)
            chosen, order = np.split(order, [_BATCH_SIZE])
            step(*part.batch(chosen))
            advance(len(part.span.nodes))
            if done % every == 0:
                errors = part.errors(self._held_out)
                in_vain += 1
                if part.is_better(errors, before) and errors.sum() < best.sum():
                    best, values, in_vain = errors, [one.numpy() for one in part.variables], 0
                if in_vain == plan.patience:
                    break
        for variable, value in zip(part.variables, values, strict=True):
            variable.assign(value)
        return best


# How an output is a row of classes, if it is one.
_LOGITS, _PROBABILITIES = "logits", "probabilities"


def _rows_of(node: Node) -> str:
    """How the output of a float model tells classes: by `_LOGITS`, `_PROBABILITIES`, or not: ""."""
    if layer_kinds.is_softmax(node.layer):
        return _PROBABILITIES
    is_row = bool(node.shape) and (node.shape[-1] or 0) > 1
    return _LOGITS if is_row and layer_kinds.activation_name(node.layer) == "linear" else ""


class _Aim(NamedTuple):
    """The values that a tensor should have.

    Attributes:
        wanted: its values for all images.
        rows: see `_rows_of`.
    """

    wanted: np.ndarray
    rows: str = ""


class _Part:
    """A part of a quantized network that is fitted at once.

    Args:
        span: its nodes, and what they read.
        aims: what some of its nodes should put out.
        without: the identities of the layers that stay as they are.
    """

    def __init__(self, span: Span, aims: Mapping[str, _Aim], without: Collection[int] = ()) -> None:
        self.span, self._aims = span, aims
        layers = {id(node.layer): node.layer for node in span.nodes}
        trained = [_trained([layer]) for key, layer in layers.items() if key not in without]
        self.layers = sum(map(bool, trained))
        self.variables = [variable for variables in trained for variable in variables]
        self._sizes = {name: _mean_square(aim.wanted) or 1.0 for name, aim in aims.items()}

    def batch(self, chosen: Any) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """The tensors that some images give to the part, and those that it should put out."""
        return (
            {name: tf.constant(array[chosen]) for name, array in self.span.given.items()},
            {name: tf.constant(aim.wanted[chosen]) for name, aim in self._aims.items()},
        )

    def step(self, rate: Any) -> Any:
        """A training step of Adam, on a `batch`."""
        optimizer = keras.optimizers.Adam(rate)
        optimizer.build(self.variables)

        @tf.function
        def step(given: dict[str, tf.Tensor], wanted: dict[str, tf.Tensor]) -> None:
            with tf.GradientTape() as tape:
                distance = tf.reduce_sum(self._far(computed(self.span.nodes, given), wanted))
            gradients = tape.gradient(distance, self.variables)
            pairs = zip(gradients, self.variables, strict=True)
            optimizer.apply_gradients([(one, of) for one, of in pairs if one is not None])

        return step

    def errors(self, chosen: np.ndarray) -> np.ndarray:
        """The squared error and the divergence of some images."""
        found = []
        for part in _parts(chosen):
            given, wanted = self.batch(part)
            errors = self._far(self.span.compute(given), wanted).numpy()
            found.append(errors * (len(part) / len(chosen)))
        return np.asarray(np.sum(found, axis=0, dtype=np.float64))

    def is_better(self, errors: np.ndarray, before: np.ndarray) -> bool:
        """Whether no error is larger than another one, and some are smaller."""
        return bool(np.all(errors <= before) and np.any(errors < before))

    def agreement(self, chosen: np.ndarray) -> float | None:
        """Share of places where outputs have the class of the float model; None without any."""
        equal = [
            classes_of(made[name].numpy()) == classes_of(wanted[name].numpy())
            for given, wanted in map(self.batch, _parts(chosen))
            for made in [self.span.compute(given)]
            for name, aim in self._aims.items()
            if aim.rows
        ]
        return float(np.mean(np.concatenate([np.ravel(one) for one in equal]))) if equal else None

    def _far(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> tf.Tensor:
        """The squared error and the divergence of what was made; see `reconstruct`."""
        squared = divergence = tf.constant(0.0)
        for name, aim in self._aims.items():
            one, other = (tf.cast(tensors[name], tf.float32) for tensors in (made, wanted))
            squared += tf.reduce_mean(tf.square(one - other)) / self._sizes[name]
            if aim.rows:
                own, of_float = (_log_shares(tensor, aim.rows) for tensor in (one, other))
                terms = tf.exp(of_float) * (of_float - own)
                divergence += tf.reduce_mean(tf.reduce_sum(terms, axis=-1))
        return tf.stack([squared, divergence])


def _log_shares(outputs: tf.Tensor, rows: str) -> tf.Tensor:
    """The logarithms of the probabilities that a row of classes has."""
    if rows == _LOGITS:
        return tf.nn.log_softmax(outputs)
    # A float32 softmax gives 0 below this.
    return tf.math.log(tf.maximum(outputs, float(np.finfo(np.float32).tiny)))


def _mean_square(values: np.ndarray) -> float:
    """The mean square of an array, which may be in a file."""
    parts = _parts(np.arange(len(values)))
    return sum(float(np.square(values[part].astype(np.float64)).sum()) for part in parts) / (
        values.size
    )


def _parts(chosen: np.ndarray) -> list[np.ndarray]:
    return np.split(chosen, range(_MEASURED_AT_ONCE, len(chosen), _MEASURED_AT_ONCE))
