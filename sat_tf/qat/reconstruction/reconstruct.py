"""Reconstruction: latent weights and clipping levels fitted to the float model, without labels."""

import dataclasses
import functools
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tf_keras as keras

from sat_tf.either_keras import for_keras3
from sat_tf.files import check_writable
from sat_tf.graph.network import Network
from sat_tf.messages import ProblemsError
from sat_tf.messages.progress_bar import Progress, image_bar
from sat_tf.messages.tables import Column, RowTable, Table, digits, percent
from sat_tf.messages.validation import Count, Positive, find_problems
from sat_tf.pictures import CALIBRATION_IMAGES
from sat_tf.qat.calibrate import measure_statistics, observe_ranges
from sat_tf.qat.images import Batches, Images, gather, images_at_once
from sat_tf.qat.input_range_checks import observe_pixels
from sat_tf.qat.layout import quantized_network
from sat_tf.qat.reconstruction.blocks import Front, find_blocks, find_reference
from sat_tf.qat.reconstruction.fit import (
    Aim,
    Checkpoint,
    FitSchedule,
    Part,
    key_of,
    rows_of_classes,
    trained,
)
from sat_tf.qat.walk import call_node
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.values import COUNT

# The steps of the fit of a block.
STEPS = 100
_FEWEST_IMAGES = 32
# One image in this many, up to this number, is held out, and tells whether a fit has helped.
_HELD_OUT, _MOST_HELD_OUT = 5, 64
# The fits of a block and of the whole network; their steps are multiples of those of a block. The
# whole takes its last values, at a rate of 0: those on the way are of longer steps, and the best of
# several would be chosen by the images that tell whether it has helped.
_BLOCK = FitSchedule(steps=1, rate=3e-3, measured=4)
_WHOLE = FitSchedule(steps=8, rate=1e-2, measured=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockFit:
    """The error of a block before it was fitted and afterwards, on the held-out images."""

    block: str  # The last layer of the block; "" for the whole network.
    layers: int  # How many layers were fitted.
    error_before: float  # The error that was fitted, see `reconstruct`, before.
    error_after: float  # The same afterwards; equal where nothing was kept.
    seconds: float  # The time that the fit took.

    @property
    def kept(self) -> bool:
        """Whether the fit has helped, and was kept."""
        return self.error_after < self.error_before


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Reconstruction(RowTable):
    """The errors of a model before and after `reconstruct`, on the images that were held out."""

    COLUMNS: ClassVar = ("block", "layers", "error_before", "error_after", "kept", "seconds")

    model: str  # The name of the model.
    blocks: tuple[BlockFit, ...]  # The fits in order; the last is that of the whole network.
    error_before: float  # The error of the outputs, as for the whole network; see `reconstruct`.
    error_after: float  # The error of the model that was kept.
    # The share of places where the largest number of an output is that of the float model; None for
    # outputs of one number.
    agreement_before: float | None
    agreement_after: float | None  # The share of the model that was kept.
    num_images: int  # How many images were used.
    held_out: int  # How many of these were not fitted to.
    seconds: float  # The time that the reconstruction took.

    @property
    def kept(self) -> bool:
        """Whether the model has changed; it has not where nothing made its outputs better."""
        return any(fit.kept for fit in self.blocks)

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each block."""
        return [{name: getattr(fit, name) for name in self.COLUMNS} for fit in self.blocks]

    def _headline(self) -> str:
        line = f"{self.model}: error of the outputs {self.error_before:.3g} to "
        line += f"{self.error_after:.3g}" + ("" if self.kept else " (nothing was better)")
        if self.agreement_before is not None:
            before, after = map(percent(1), (self.agreement_before, self.agreement_after))
            line += f", answers of the float model {before} to {after}"
        return f"{line}, on {self.held_out} held-out images; {self.seconds:.0f} s"

    def _tables(self) -> dict[str, Table[BlockFit]]:
        number = digits(".3g")
        columns: list[Column[BlockFit]] = [
            Column("block up to", lambda fit: fit.block or "the whole network", wrap="fold"),
            Column("layers", lambda fit: fit.layers, number=True),
            Column("error", lambda fit: fit.error_before, number, number=True),
            Column("fitted", lambda fit: fit.error_after, number, number=True),
            Column("kept", lambda fit: "yes" if fit.kept else "no"),
            Column("time (s)", lambda fit: fit.seconds, digits(".1f"), number=True),
        ]
        title = "errors of what blocks put out, on the held-out images"
        return {title: Table(columns=columns, rows=self.blocks)}


@for_keras3(by="written_back")
def reconstruct(
    model: keras.Model,
    float_model: keras.Model,
    dataset: Any,
    *,
    num_images: int = CALIBRATION_IMAGES,
    steps: int = STEPS,
    seed: int = 0,
    progress: bool = True,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
) -> Reconstruction:
    """Fits a calibrated model to its float model, block by block, without labels.

    For each block B in order, Adam fits its latent weights W, its biases, the γ and β of its
    normalizations, and its clipping levels α:

        min Σ |B(x̂; W, α) - B_float(x)|² / Σ |B_float(x)|²,

    where x̂ is what quantized blocks in front put out, and x what those of the float model do. A
    block ends at a tensor that all later layers depend on. Then the whole network is fitted to the
    outputs of the float model, to the same error plus, of outputs that are a row of logits or
    probabilities, the divergence T² KL(p_float || p) in nats with p = softmax(logits / T), T = 4. A
    row of several numbers that a linear layer makes counts as logits, also where it holds
    coordinates: nothing in a model tells them apart.

    This is the objective of AdaRound and BRECQ with the quantizers that the model has: its latent
    weights are the soft rounding. Blocks are computed as in inference; the whole network with the
    statistics of each batch, unless normalizations are frozen, and they are measured anew
    afterwards, as are the ranges of outputs.

    One image in five is held out, 64 at most. A fit is kept only if it makes their error smaller.
    In the end all is as it was unless neither the squared error of the outputs nor the divergence
    has become larger. Layers that are frozen or left float stay as they are. The same seed gives
    the same model.

    Args:
        model: a model quantized by sat-tf and calibrated, or trained; it is changed in place.
        float_model: the model that it was made from.
        dataset: images, as `calibrate` takes them, uint8 pixels too; labels are not used. 200 are
            enough to gain from, and more are better.
        num_images: how many to use at most. The tensors of all of them that one block reads and
            makes are in memory, or above 64 MiB in temporary files.
        steps: Adam steps of a block, with 32 images each; the whole network gets 8 times as many.
        seed: the seed of the choice of the held-out images and the order of the others.
        progress: show a bar on a terminal or in a notebook, and elsewhere a line a minute.
        checkpoint: the path of a file that keeps what is fitted so far: the same call goes on from
            there after an interruption, and gives the same model. One of another model, other
            images or settings is passed over.

    Returns:
        A `Reconstruction`: the errors of each block before and after, to be printed (`table`) or
        exported (`to_rows`, `write_csv`).

    Raises:
        ValueError: the model is not quantized by sat-tf, not calibrated, frozen, or not made from
            the float model; the images are fewer than 32, non-finite, or do not fit its input or
            its `input_range`; the checkpoint cannot be written. Lists every problem. The model has
            not changed.
    """
    network = quantized_network(model, when="first")
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(None if checkpoint is None else check_writable(checkpoint))
    reference, problems = find_reference(network, float_model)
    problems += _not_ready(network)
    problems += find_problems(steps=(steps, Positive), seed=(seed, Count))
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
        raise ProblemsError("reconstruct", problems)
    start = model.get_weights()
    try:
        observe_pixels(images, network, reference=reference, by="reconstruct")
        fit = _Reconstructor(network, reference, images, checkpoint, steps=steps, seed=seed)
        return fit.run(model, shown=progress)
    except BaseException:  # also an interruption
        model.set_weights(start)
        raise


def _not_ready(network: Network) -> list[str]:
    """Why a quantized model cannot be fitted."""
    layers = [node.layer for node in network if isinstance(node.layer, QuantizedLayer)]
    reasons = {
        "that has seen no images, expected one that is calibrated; call sat_tf.calibrate(model, "
        "images) first": any(float(x.output_variables.get(COUNT, 1.0)) == 0.0 for x in layers),
        "with constant weights, expected one whose weights may change; call reconstruct outside of "
        "constant_weights": any(layer.constant_kernel is not None for layer in layers),
        "whose quantized layers are all frozen, expected some to fit; set layer.trainable = True": (
            not any(map(trained, layers))
        ),
    }
    called = f"model {network.name!r}: received a model"
    return [f"{called} {reason}." for reason, holds in reasons.items() if holds]


class _Reconstructor:
    """One reconstruction."""

    def __init__(
        self,
        network: Network,
        reference: Network,
        images: Images,
        checkpoint: Checkpoint,
        *,
        steps: int,
        seed: int,
    ) -> None:
        self._network, self._reference, self._images = network, reference, images
        self._checkpoint = checkpoint
        self._steps, self._seed, self._draw = steps, seed, np.random.default_rng(seed)
        order = self._draw.permutation(len(images[0]))
        held_out = min(len(order) // _HELD_OUT, _MOST_HELD_OUT)
        self._held_out, self._fitted = np.split(order, [held_out])

    def run(self, model: keras.Model, *, shown: bool) -> Reconstruction:
        """Fits the model."""
        checkpoint = self._checkpoint
        start, whole = model.get_weights(), self._whole()
        before, answers = whole.errors(self._held_out), whole.agreement(self._held_out)
        if not np.all(np.isfinite(before)):
            raise ValueError(
                "reconstruct: received models of which one puts out NaN or infinite values for "
                "these images, expected finite ones; check the weights and statistics of both."
            )
        blocks = find_blocks(self._network, self._reference)
        settings = {"steps": self._steps, "seed": self._seed}
        key = key_of(self._network, self._reference, self._images, **settings)
        checkpoint.open(key, model, self._draw, blocks=len(blocks))
        total = (_BLOCK.steps + _WHOLE.steps) * self._steps * len(whole.span.nodes)
        with image_bar("reconstructing", total, shown=shown) as progress:
            if len(checkpoint.fits) < len(blocks):
                self._fit_blocks(blocks, progress)
            if len(checkpoint.fits) == len(blocks):
                # Repeated after an interruption, this has the same result.
                if not np.sum(whole.errors(self._held_out)) < np.sum(before):
                    model.set_weights(start)
                    checkpoint.fits[:] = map(_undone, checkpoint.fits)
                progress.at("the whole network")
                # Normalizations get the statistics of the fitted images in the quantized network.
                batches = Batches(self._images, self._fitted, size=images_at_once(self._network))
                measure = functools.partial(measure_statistics, self._network, batches, call_node)
                measuring = {"limit": before, "measure_statistics": measure}
                self._fit(whole, "", _WHOLE, progress, **measuring)
        fits = checkpoint.fits
        observe_ranges(self._network, Batches(self._images))
        after = whole.errors(self._held_out)
        if not (np.all(after <= before) and np.any(after < before)):
            model.set_weights(start)
            fits, after = [*map(_undone, fits)], before
        return Reconstruction(
            model=model.name,
            blocks=tuple(BlockFit(**fit) for fit in fits),
            error_before=float(np.sum(before)),
            error_after=float(np.sum(after)),
            agreement_before=answers,
            agreement_after=whole.agreement(self._held_out),
            num_images=len(self._images[0]),
            held_out=len(self._held_out),
            seconds=checkpoint.seconds_so_far,
        )

    def _whole(self) -> Part:
        """The whole network, fitted to the outputs of the float model."""
        network, reference = self._network, self._reference
        beside = Front(reference, self._images)
        beside.advance(beside.up_to(reference.outputs), keep=reference.outputs)
        aims = {}
        for output_name, name in zip(network.outputs, reference.outputs, strict=True):
            targets = beside.tensors[name]
            aims[output_name] = Aim(targets, rows_of_classes(reference, name, targets.shape[1:]))
        return Part(Front(network, self._images).up_to(network.outputs), aims)

    def _fit_blocks(self, blocks: Mapping[str, str], progress: Progress) -> None:
        """Fits one block after the other, except those that are finished."""
        front, beside = Front(self._network, self._images), Front(self._reference, self._images)
        seen: set[int] = set()
        for number, (name, float_name) in enumerate(blocks.items()):
            progress.at(f"block {number + 1} of {len(blocks)}")
            span, float_span = front.up_to([name]), beside.up_to([float_name])
            beside.advance(float_span, keep=[float_name, *self._reference.outputs])
            if number < len(self._checkpoint.fits):
                progress.skip(_BLOCK.steps * self._steps * len(span.nodes))
            else:
                block = Part(span, {name: Aim(beside.tensors[float_name])}, without=seen)
                self._fit(block, float_name, _BLOCK, progress)
            seen |= {id(node.layer) for node in span.nodes}
            front.advance(span)

    def _fit(
        self, part: Part, name: str, plan: FitSchedule, progress: Progress, **settings: Any
    ) -> None:
        begin = time.monotonic()
        plan = plan._replace(steps=plan.steps * self._steps)
        settings |= {"advance": progress, "checkpoint": self._checkpoint}
        errors = part.fit(plan, self._fitted, self._held_out, self._draw, **settings)
        before, after = (float(np.sum(error)) for error in errors)
        fit = {"block": name, "layers": part.layers, "error_before": before, "error_after": after}
        self._checkpoint.finish({**fit, "seconds": time.monotonic() - begin})


def _undone(fit: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a fit that has helped its block alone, and was not kept."""
    return {**fit, "error_after": fit["error_before"]}
