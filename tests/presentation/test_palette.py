import numpy as np

from sat_tf.presentation import palette


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
