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
