import numpy as np
import pytest

from sat_tf.presentation import palette
from sat_tf.reproduction.figures.library import FIGURES
from tests.reproduction.figures.small import tables


@pytest.fixture(params=list(FIGURES))
def picture(request):
    with palette.styled():
        yield FIGURES[request.param].draw(tables()[request.param])


@pytest.mark.thorough
def test_every_axis_is_named(picture):
    for axes in picture.axes:
        columns = [axes, *axes.get_shared_x_axes().get_siblings(axes)]
        rows = [axes, *axes.get_shared_y_axes().get_siblings(axes)]
        below = any(other.get_xlabel() for other in columns) or picture.get_supxlabel()
        beside = any(other.get_ylabel() for other in rows) or picture.get_supylabel()
        marks = [mark.get_text() for mark in axes.get_xticklabels()]
        # The marks may be names themselves, and a bar of colours has one axis.
        assert below or not marks or any(mark[:1].isalpha() for mark in marks)
        assert beside


def test_no_letter_is_smaller_than_11_points(picture):
    # At half the size, 5.5 points: the least that is read on a screen.
    for axes in picture.axes:
        texts = [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        texts += [*axes.get_xticklabels(), *axes.get_yticklabels()]
        texts += axes.get_legend().get_texts() if axes.get_legend() else []
        assert min(text.get_fontsize() for text in texts) >= 11


def test_lines_differ_in_colour_dashes_and_dots():
    colours = {palette.BLUE, palette.ORANGE, palette.GREEN, palette.PURPLE}
    assert {style["color"] for style in palette.SERIES} == colours
    for property_ in ("color", "linestyle", "marker"):
        assert len({style[property_] for style in palette.SERIES}) == len(palette.SERIES)


def test_depths_go_from_dark_to_light_and_never_to_white():
    colours, depth = palette.depths(20)
    shares = (0.2126, 0.7152, 0.0722)  # of red, green and blue in how bright a colour is
    bright = [np.dot(shares, colours(depth(number))[:3]) for number in range(1, 21)]
    assert bright == sorted(bright)
    assert bright[-1] < 0.7
