"""The multiplications by kernels of a model, and which of them follow which."""

import dataclasses
from collections.abc import Sequence

import tf_keras as keras

from sat_tf.analysis.linear_parts import LinearPart, groups, kernel_of, linear_parts
from sat_tf.analysis.wiring import Call, Wiring


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One multiplication by a kernel, and those that follow it.

    Attributes:
        name: see `kappa_1.LayerFlow`.
        layer: that multiplies.
        outer: the layer of the graph it belongs to: itself, its wrapper, or what hides it.
        part: which of the layer's multiplications it is.
        normalization: see `kappa_1.LayerFlow`.
        reads_image: see `kappa_1.LayerFlow`.
        following: names of the steps l + 1, and the area of the average pooling in between.
        unknown: see `kappa_1.LayerFlow`.
    """

    name: str
    layer: keras.layers.Layer
    outer: keras.layers.Layer
    part: LinearPart
    normalization: str | None = None
    reads_image: bool = False
    following: tuple[tuple[str, int | None], ...] = ()
    unknown: str = ""

    @property
    def kind(self) -> str:
        """Class of the layer."""
        return type(self.layer).__name__

    @property
    def is_last_part(self) -> bool:
        """Whether the layer's output is that of this multiplication."""
        return self.part is linear_parts(self.layer)[-1]

    @property
    def fan_in(self) -> int:
        """Inputs of one output, n."""
        return self.part.fan_in(self._shape, groups(self.layer))

    @property
    def fan_out(self) -> int:
        """Outputs of one input, n̂."""
        return self.part.fan_out(self._shape, groups(self.layer))

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(kernel_of(self.layer, self.part).shape)


def linear_steps(wiring: Wiring) -> dict[str, Step]:
    """The multiplications by kernels of a model, by name, in graph order."""
    calls = wiring.linear()
    times = [call.layer for call in calls]
    steps: dict[str, Step] = {}
    for call in wiring:
        if not call.is_linear:
            steps.update(_hidden(call))
            continue
        parts = linear_parts(call.layer)
        for part, behind in zip(parts, (*parts[1:], None), strict=True):
            following, unknown = _following(wiring, call, behind)
            if times.count(call.layer) > 1:
                unknown = "the layer is called more than once"
            step = Step(
                part.name(call.name),
                call.layer,
                call.outer,
                part,
                # Nothing bends between the two parts of a separable convolution: what divides the
                # second's output by its deviation takes the size of both kernels out.
                normalization=wiring.normalization_behind(call),
                reads_image=wiring.reads_image(call) and part is parts[0],
                following=following,
                unknown=unknown,
            )
            steps.setdefault(step.name, step)
    return steps


def _hidden(call: Call) -> dict[str, Step]:
    """The multiplications inside a layer whose calls cannot be followed."""
    return {
        part.name(f"{call.name}/{inner.name}"): Step(
            part.name(f"{call.name}/{inner.name}"),
            inner,
            call.outer,
            part,
            unknown=f"it is inside {call.name}, whose calls cannot be followed",
        )
        for inner in call.layer._flatten_layers(include_self=False, recursive=True)
        for part in linear_parts(inner)
    }


def _following(
    wiring: Wiring, call: Call, behind: LinearPart | None
) -> tuple[tuple[tuple[str, int | None], ...], str]:
    if behind is not None:
        return ((behind.name(call.name), 1),), ""
    found = wiring.neighbours(call)
    following = tuple(
        (linear_parts(to.call.layer)[0].name(to.call.name), to.pooled_area)
        for to in found
        if to.call.is_linear
    )
    strange = [to.call.name for to in found if not to.call.is_linear]
    return following, _unknown(following, strange)


def _unknown(following: Sequence[tuple[str, int | None]], strange: list[str]) -> str:
    if strange:
        return f"it is followed by layers that are not known: {', '.join(strange)}"
    if not following:
        return "no linear layer follows"
    if any(area is None for _, area in following):
        return "how much is averaged behind it is not known"
    return ""
