"""What values a tensor can have that is the image itself, moved or preprocessed."""

from collections.abc import Mapping

import numpy as np

from sat_tf.qat import registry
from sat_tf.qat.input_ranges import Grid
from sat_tf.qat.network import Network
from sat_tf.qat.preprocessing import is_plain_factor, slope_and_offset
from sat_tf.qat.registry import Role


class PixelRanges:
    """The smallest and the largest value of every tensor that is made of pixels alone.

    Args:
        network: the float model.
        grids: the pixels of each input that is an image, as the first layers read them.
    """

    def __init__(self, network: Network, grids: Mapping[str, Grid]) -> None:
        self._ranges: dict[str, tuple[float, float]] = {}
        self._counts: set[str] = set()
        self._inputs = set(network.inputs)
        for node in network:
            preprocessed = registry.role_of(node.layer) in (Role.MOVEMENT, Role.AFFINE)
            if preprocessed and self._inputs.issuperset(node.inputs):
                self._inputs.add(node.name)
        for node in network:
            if node.name in network.inputs:
                if node.name not in grids:
                    continue
                grid = grids[node.name]
                ends = [grid.step * (end - grid.zero_point) for end in (0, 255)]
                self._ranges[node.name] = ends[0], ends[1]
                self._counts.add(node.name)
                continue
            alone = len(node.inputs) == 1 and self.reads(node.inputs[0])
            if not alone or registry.unsupported_problem(node.layer) is not None:
                continue
            keeps = registry.role_of(node.layer).keeps_codes
            if (keeps or is_plain_factor(node.layer)) and self.are_counts(node.inputs[0]):
                self._counts.add(node.name)
            if keeps:
                self._ranges[node.name] = self[node.inputs[0]]
            elif registry.role_of(node.layer) is Role.AFFINE:
                slope, offset = slope_and_offset(node.layer)
                ends = [slope * end + offset for end in self[node.inputs[0]]]
                self._ranges[node.name] = float(np.min(ends)), float(np.max(ends))

    def reads(self, name: str) -> bool:
        """Whether a tensor is made of pixels alone."""
        return name in self._ranges

    def are_inputs(self, name: str) -> bool:
        """Whether a tensor is an input of any kind, moved or preprocessed."""
        return name in self._inputs

    def are_counts(self, name: str) -> bool:
        """Whether a tensor is a positive number times the integers of the image."""
        return name in self._counts

    def __getitem__(self, name: str) -> tuple[float, float]:
        return self._ranges[name]
