import pytest

from sat_tf.figures import palette
from sat_tf.figures.library import FIGURES
from tests.figures.small import tables


@pytest.fixture(params=list(FIGURES))
def picture(request):
    with palette.styled():
        yield FIGURES[request.param].draw(tables()[request.param])


def test_every_axis_is_named(picture):
    shared = [getattr(picture, name)() for name in ("get_supxlabel", "get_supylabel")]
    panels = picture.axes
    for axes in panels:
        beside = [axes, *axes.get_shared_y_axes().get_siblings(axes)]
        assert (
            axes.get_xlabel()
            or shared[0]
            or axes.get_xticklabels()
            or "colorbar" in axes.get_label()
        )
        assert any(other.get_ylabel() for other in beside) or shared[1]


def test_no_letter_is_smaller_than_11_points(picture):
    # At half the size, 5.5 points: the least that is read on a screen.
    texts = [
        text for axes in picture.axes for text in (*axes.texts, axes.xaxis.label, axes.yaxis.label)
    ]
    assert min(text.get_fontsize() for text in texts) >= 11


def test_colours_are_those_that_the_colour_blind_can_tell_apart():
    series = [style["color"] for style in palette.SERIES]
    assert len({*series}) == len(palette.SERIES)
    assert set(series) <= {palette.BLUE, palette.ORANGE, palette.GREEN, palette.PURPLE}
    assert len({style["linestyle"] for style in palette.SERIES}) == len(palette.SERIES)
    assert len({style["marker"] for style in palette.SERIES}) == len(palette.SERIES)
