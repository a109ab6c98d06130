from sat_tf.presentation import palette


def test_lines_differ_in_colour_dashes_and_dots():
    colours = {palette.BLUE, palette.ORANGE, palette.GREEN, palette.PURPLE}
    assert {style["color"] for style in palette.SERIES} == colours
    for property_ in ("color", "linestyle", "marker"):
        assert len({style[property_] for style in palette.SERIES}) == len(palette.SERIES)
