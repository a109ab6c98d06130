import json
import math

import pytest

from sat_tf.preprocessing import AS_IN_IMAGENET, COVERING, RESIZED_AND_CROPPED, Preprocessing


@pytest.mark.parametrize("known", [COVERING, RESIZED_AND_CROPPED, AS_IN_IMAGENET])
def test_it_is_what_its_file_says(known):
    assert Preprocessing.from_json(known.to_json()) == known


def test_the_picture_covers_the_input_and_the_crop_lies_in_its_centre():
    assert RESIZED_AND_CROPPED.geometry((256, 512), (224, 224)) == ((256, 512), (16, 144))
    assert COVERING.geometry((100, 100), (32, 64)) == ((64, 64), (16, 0))
    assert COVERING.geometry((32, 64), (32, 64)) == ((32, 64), (0, 0))


def test_words_say_the_sizes():
    assert "until its shorter side has 256 pixels" in RESIZED_AND_CROPPED.describe((224, 224))
    assert "until it covers 32x64 pixels" in COVERING.describe((32, 64))
    assert "as it is stored" in AS_IN_IMAGENET.describe((224, 224))


@pytest.mark.parametrize("ratio", [0.5, 5, math.nan, "1", True])
def test_ratios_out_of_range_are_refused(ratio):
    with pytest.raises(
        ValueError, match=r"(?s)resize_ratio: received .*exif_orientation: received"
    ):
        Preprocessing(resize_ratio=ratio, exif_orientation="no")


def test_files_that_say_something_else_are_refused():
    known = json.loads(COVERING.to_json())
    for text in (
        "",
        "[]",
        "3",
        json.dumps({**known, "crop": "corner"}),
        json.dumps({**known, "x": 1}),
    ):
        with pytest.raises(
            ValueError, match=r"preprocessing: received .*expected what this version"
        ):
            Preprocessing.from_json(text)
