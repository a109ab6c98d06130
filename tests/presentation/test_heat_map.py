"""Matrices of shares: few classes fit a telephone, and many are readable."""

import re

import numpy as np
import pytest

from sat_tf.presentation.heat_map import heat_map


def drawn(size):
    names = [f"class {number}" for number in range(size)]
    return heat_map(np.eye(size), names, title="t", summary="s", tip=lambda row, column: "tip")


@pytest.mark.parametrize(("size", "rem", "font"), [(3, 22, 21.8), (5, 28, 17.1), (12, 40, 12.0)])
def test_few_classes_are_shown_smaller_with_letters_as_large(size, rem, font):
    found = re.search(r'style="font-size:([\d.]+)px;--widest:([\d.]+)rem"', drawn(size))
    assert (float(found[1]), float(found[2])) == (font, rem)


def test_cells_without_images_are_not_drawn():
    assert drawn(4).count("<rect") == 1 + 4  # the frame, and the diagonal
