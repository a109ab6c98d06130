"""Reconstruction on the way to a file: a calibrated model is fitted, and its gain recorded."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict

from sat_tf import output_folder
from sat_tf.messages.tables import digits, percent
from sat_tf.output_folder import OutputFolder

if TYPE_CHECKING:
    import tf_keras as keras


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """How a reconstruction was done, and how good the model was before and after."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    steps: int  # The number of steps for each block, at most.
    images: int  # The number of images that were used.
    held_out: int  # How many of these were not fitted to; errors and agreement are of them.
    seconds: float  # The time that the reconstruction took.
    error_before: float  # The error of the calibrated model's outputs; see `sat_tf.reconstruct`.
    error_after: float  # The error of the fitted model's outputs.
    # The share of the calibrated model's answers that are those of the float model; None for
    # outputs that are not classes.
    agreement_before: float | None = None
    agreement_after: float | None = None  # The same share of the fitted model's answers.
    # The calibrated model's top-1 on labelled pictures, biases as in a file; None without any.
    calibrated_top1: float | None = None
    calibrated_top5: float | None = None  # The top-5 of the same model; None for few classes.
    fitted_top1: float | None = None  # The top-1 of the fitted model.
    # Whether the model is the fitted one: the calibrated one is kept where no fit has helped, or
    # where labels are there to tell that it is the better one.
    kept: bool

    @classmethod
    def read(cls, folder: OutputFolder) -> "Fitted | None":
        """The record in a folder; None where nothing was fitted."""
        name = output_folder.RECONSTRUCTION
        if not folder.file(name).exists():
            return None
        return folder.read_values(name, cls, "what a reconstruction has gained")

    def to_dict(self) -> dict[str, Any]:
        """The fields that were measured, as plain values for JSON."""
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if value is not None}

    def write(self, folder: OutputFolder) -> None:
        """Records the reconstruction in a folder."""
        folder.write_json(output_folder.RECONSTRUCTION, self.to_dict())

    @property
    def how(self) -> str:
        """How the reconstruction was done, in words."""
        return (
            f"block by block, {self.steps} steps each, on {self.images:,} images, "
            f"{self.held_out:,} of them held out, in {self.seconds:.0f} s"
        )

    @property
    def gained(self) -> str:
        """The measurements before and after, in words."""
        share = percent()
        outputs = (
            ("error of the outputs", digits(".3g"), self.error_before, self.error_after)
            if self.agreement_before is None
            else ("class of the float model", share, self.agreement_before, self.agreement_after)
        )
        top1 = ("top-1 with labels", share, self.calibrated_top1, self.fitted_top1)
        words = [
            f"{name}: {show(before)} before, {show(after)} after"
            for name, show, before, after in (outputs, top1)
            if before is not None
        ]
        if not self.kept:
            by_labels = (self.fitted_top1 or 0.0) < (self.calibrated_top1 or 0.0)
            why = "its top-1 is the better one" if by_labels else "no fit has helped"
            words.append(f"the calibrated model is kept, because {why}")
        return "; ".join(words)


def fit(
    model: "keras.Model",
    float_model: "keras.Model",
    dataset: Any,
    *,
    steps: int,
    measure: Callable[[], dict[str, float]] = dict,
    keep_better: bool = False,
    **settings: Any,
) -> Fitted:
    """Fits a calibrated model in place, also the layers that were frozen when it was trained.

    The settings are those of `reconstruct`. `measure` gives top1, and top5 of many classes, of the
    model as its file would be. With `keep_better` the calibrated model is kept where its top1 is
    larger. Whatever is raised, also by an interruption, the model has not changed.
    """
    import tf_keras as keras

    from sat_tf.qat.reconstruction.reconstruct import reconstruct

    calibrated = model.get_weights()
    # A layer that was frozen in the training of the float model has been rounded as all others.
    # Layers come before those inside, which take over what is set on them.
    layers = [module for module in model.submodules if isinstance(module, keras.layers.Layer)]
    frozen = [(layer, layer.trainable) for layer in layers]
    try:
        before = measure()
        model.set_weights(calibrated)
        try:
            for layer in layers:
                layer.trainable = True
            reconstruction = reconstruct(model, float_model, dataset, steps=steps, **settings)
        finally:
            for layer, was in frozen:
                layer.trainable = was
        fitted = model.get_weights()
        after = measure()
    except BaseException:
        model.set_weights(calibrated)
        raise
    is_worse = keep_better and after.get("top1", 0.0) < before.get("top1", 0.0)
    model.set_weights(calibrated if is_worse else fitted)
    return Fitted(
        steps=steps,
        images=reconstruction.num_images,
        held_out=reconstruction.held_out,
        seconds=reconstruction.seconds,
        error_before=reconstruction.error_before,
        error_after=reconstruction.error_after,
        agreement_before=reconstruction.agreement_before,
        agreement_after=reconstruction.agreement_after,
        calibrated_top1=before.get("top1"),
        calibrated_top5=before.get("top5"),
        fitted_top1=after.get("top1"),
        kept=reconstruction.kept and not is_worse,
    )
