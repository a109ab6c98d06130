import logging

import numpy as np
import pytest

from sat_tf.training.data.decoding import (
    CorruptPictures,
    Encoded,
    NoGoodPictureError,
    decode_slowly,
    first_good,
)
from tests.training.data.photographs import corrupt_files, odd_files, photograph

ODD, CORRUPT = odd_files(), corrupt_files()


@pytest.mark.parametrize("name", ODD)
def test_odd_files_show_their_picture(name):
    found = decode_slowly(ODD[name]).astype(int)
    assert found.shape == (60, 80, 3)
    expected = photograph().astype(int)
    if "grey" in name or "16" in name:
        expected = expected @ [0.299, 0.587, 0.114]
        expected = expected[..., None].repeat(3, 2)
    # JPEG and CMYK lose some; palettes of 256 colours lose more.
    limit = 16 if name in ("palette", "bmp_palette", "gif") else 8
    assert np.abs(found - expected).mean() < limit


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_files_are_refused_with_a_reason(name):
    with pytest.raises(ValueError, match=r"it is empty|it is truncated|it cannot be decoded"):
        decode_slowly(CORRUPT[name])


def test_each_corrupt_picture_is_named_in_the_log_once(caplog):
    corrupt = CorruptPictures("cats", 100, 0.001)
    with caplog.at_level(logging.WARNING):
        for name in ("a.jpg", "b.jpg", "a.jpg"):
            corrupt.add(name, "it is empty")
    assert [record.getMessage() for record in caplog.records] == [
        "cats: corrupt picture a.jpg: it is empty; skipped (1 so far)",
        "cats: corrupt picture b.jpg: it is empty; skipped (2 so far)",
    ]
    assert corrupt.names == ("a.jpg", "b.jpg")


@pytest.mark.parametrize(
    ("count", "share", "most"),
    [(1_000_000, 0.001, 1000), (100, 0.001, 5), (100, 0.2, 20), (1_000_000, 0, 0)],
)
def test_more_corrupt_pictures_than_the_share_are_an_error(count, share, most):
    corrupt = CorruptPictures("cats", count, share)
    for number in range(most):
        corrupt.add(str(number), "it is empty")
    with pytest.raises(ValueError, match=rf"{most + 1} corrupt pictures, expected at most {most} "):
        corrupt.add("one more", "it is empty")
    # Other threads, which are under way, change nothing of it.
    with pytest.raises(ValueError, match=rf"received {most + 1} corrupt pictures"):
        corrupt.add("another", "it is empty")


def test_the_first_good_picture_is_taken():
    pictures = [
        Encoded("a", lambda: b"", 0),
        Encoded("b", lambda: ODD["tiff"], 1),
        Encoded("c", lambda: ODD["png"], 2),
    ]
    corrupt = CorruptPictures("cats", 10, 0.1)
    assert first_good(pictures, corrupt, decode_slowly)[1] == 1
    assert corrupt.names == ("a",)
    with pytest.raises(
        NoGoodPictureError, match=r"1 corrupt pictures and no good one.*a: it is empty"
    ):
        first_good(pictures[:1], corrupt, decode_slowly)
