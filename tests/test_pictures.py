import io
import os
import socket

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from sat_tf.exact.tflite.preprocessing import (
    AS_IN_IMAGENET,
    COVERING,
    RESIZED_AND_CROPPED,
    Preprocessing,
)
from sat_tf.pictures import image_of, open_again, open_pictures, pixels_of
from tests.training.data.photographs import (
    corrupt_files,
    encoded,
    jpeg_of,
    photograph,
    png_of,
    tiff_of_12_bits,
)

SHAPE = (6, 8, 3)


def picture(value, shape=SHAPE):
    return np.full(shape, value, np.uint8)


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def read(path, shape=SHAPE, most=None):
    return open_pictures(path, shape).sample(most).images()


# How folders are listed.


def test_a_flat_folder_has_no_labels_and_folders_are_classes_in_the_order_of_names(tmp_path):
    for name, value in (("b.png", 2), ("a.png", 1), ("c.bmp", 3), (".d.png", 4)):
        save(tmp_path / "flat" / name, picture(value))
    touch(tmp_path / "flat", "notes.txt")
    images, pictures = read(tmp_path / "flat")
    assert images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert (pictures.labels, pictures.class_names) == (None, ())
    assert pictures.names == ["a.png", "b.png", "c.bmp"]
    assert pictures.notes == ("1 files passed over, no pictures by their names: notes.txt",)
    for name, value in (("dog/1.png", 10), ("ant/1.png", 20), ("cat/2.png", 31), ("cat/1.png", 30)):
        save(tmp_path / "set" / name, picture(value))
    (tmp_path / "set" / "empty").mkdir()
    images, pictures = read(f"{tmp_path}/set")
    assert pictures.class_names == ("ant", "cat", "dog", "empty")
    assert pictures.labels.tolist() == [0, 1, 1, 2]
    assert images[:, 0, 0, 0].tolist() == [20, 30, 31, 10]


@pytest.mark.parametrize("name", ["val", "validation", "test"])
def test_a_divided_folder_has_train_and_one_of_three_names(tmp_path, name):
    touch(tmp_path, "train/b/2.JPEG", "train/a/1.jpg", "train/b/1.png", f"{name}/a/1.JPEG")
    touch(tmp_path, f"{name}/b/x.bmp", "tests/of/others.txt")
    pictures = open_pictures(tmp_path)
    assert pictures.names == ["train/a/1.jpg", "train/b/1.png", "train/b/2.JPEG"]
    assert pictures.labels.tolist() == [0, 1, 1]
    assert (pictures.part, pictures.held_out.part) == ("train", name)
    assert pictures.held_out.names == [f"{name}/a/1.JPEG", f"{name}/b/x.bmp"]
    assert pictures.split()[1] is pictures.held_out
    touch(tmp_path, "unread/train/a/1.jpg", "unread/held_out/a/1.jpg")
    (note,) = open_pictures(tmp_path / "unread").notes
    assert note == "not read: held_out; val is the name of what is held out"


@pytest.mark.parametrize(
    ("files", "names", "class_names"),
    [
        ("train/a/1.jpg val/a/1.jpg test/1.jpg test/2.jpg", ["val/a/1.jpg"], ("a",)),
        ("a/images/1.jpg a/.1.jpg a/boxes.txt b/2.jpg", ["a/images/1.jpg", "b/2.jpg"], ("a", "b")),
        ("train/a/1.jpg train/.git/1.jpg", ["train/a/1.jpg"], ("a",)),
        ("test/1.jpg control/1.jpg", ["control/1.jpg", "test/1.jpg"], ("control", "test")),
        ("train/1.jpg val/1.jpg test/1.jpg", ["val/1.jpg"], ()),
    ],
    ids=["test beside val", "inner folders", "hidden", "called as a part", "without classes"],
)
def test_a_folder_has_these_pictures_or_holds_them_out(files, names, class_names, tmp_path):
    pictures = open_pictures(touch(tmp_path, *files.split()))
    listed = pictures.held_out or pictures
    assert (listed.names, listed.class_names) == (names, class_names)


def test_links_to_folders_are_followed_once_and_what_is_no_file_is_corrupt(tmp_path):
    links = tmp_path / "links"
    touch(links, "elsewhere/2.jpg", "set/a/1.jpg", "set/b/1.jpg")
    (links / "set/a/more").symlink_to(links / "elsewhere")
    (links / "elsewhere/back").symlink_to(links / "set/a")
    (links / "elsewhere/round").symlink_to(links / "elsewhere")
    assert open_pictures(links / "set").names == ["a/1.jpg", "a/more/2.jpg", "b/1.jpg"]
    flat = tmp_path / "flat"
    save(flat / "good.png", picture(1))
    os.mkfifo(flat / "pipe.png")
    (flat / "gone.png").symlink_to(flat / "nowhere")
    (flat / "round.png").symlink_to("round.png")
    (flat / "device.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(flat / "socket.png"))
        images, pictures = read(flat)
    assert len(images) == 1
    (corrupt,) = pictures.notes
    assert corrupt.startswith("5 of 6 files are no pictures, not whole, or too large: ")
    for name in ("device.png", "gone.png", "pipe.png", "round.png", "socket.png"):
        assert name in corrupt


@pytest.mark.parametrize("beside", [["bus", "car"], ["bus", "val"], ["bus/large"]])
def test_a_train_that_may_be_a_class_or_a_part_is_refused(tmp_path, beside):
    touch(tmp_path, *(f"{name}/1.jpg" for name in ("train", *beside)))
    with pytest.raises(ValueError, match=r"in it and the folders bus.* beside them"):
        open_pictures(tmp_path)
    parts = tmp_path / "divided" / "train"
    touch(parts, *(f"{name}/1.jpg" for name in ("bus", "car", "train")))
    assert open_pictures(tmp_path / "divided").class_names == ("bus", "car", "train")


def test_folders_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    touch(tmp_path, "a/1.jpg", "a/more/2.jpg", "b/1.jpg")
    scan = os.scandir

    def guarded(place):
        if str(place).endswith("more"):
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(ValueError, match=r"a/more: received a folder that cannot be read \(Perm"):
        open_pictures(tmp_path)


# How they are divided and sampled.


def test_of_folders_of_classes_a_fifth_of_each_is_held_out(tmp_path):
    touch(tmp_path, *(f"cat/{number}.jpg" for number in range(10)))
    touch(tmp_path, *(f"dog/{number}.png" for number in range(2)), "ox/1.jpg")
    train, held_out = open_pictures(tmp_path).split()
    assert train.labels.tolist() == [0] * 8 + [1, 2]
    assert held_out.labels.tolist() == [0, 0, 1]
    assert len({*train.names, *held_out.names}) == 13
    assert train.notes == ("of each class a fifth is held out, by a hash of the names",)
    # It depends on the names alone.
    for place in ("here", "there/train"):
        touch(tmp_path / place, *(f"cat/{number}.jpg" for number in range(10)))
        touch(tmp_path / place, *(f"dog/{number}.jpg" for number in range(10)))
    _, here = open_pictures(tmp_path / "here").split()
    train, there = open_pictures(tmp_path / "there").split()
    # Written down: the same on every machine and with every version.
    assert here.names == ["cat/3.jpg", "cat/8.jpg", "dog/6.jpg", "dog/9.jpg"]
    assert there.names == [f"train/{name}" for name in here.names]
    assert train.notes[0].startswith("of each class a fifth is held out")


def test_a_fifth_of_pictures_without_labels_and_one_array_in_five_are_held_out(tmp_path):
    touch(tmp_path, *(f"set/{number}.jpg" for number in range(10)))
    train, held_out = open_pictures(tmp_path / "set").split()
    assert (len(train), len(held_out)) == (8, 2)
    np.save(tmp_path / "a.npy", np.arange(10)[:, None])
    pictures = open_pictures(tmp_path / "a.npy")
    assert isinstance(pictures.array, np.memmap)  # it stays on the disk until it is sampled
    assert (len(pictures), pictures[3].tolist()) == (10, [3])
    assert pictures.sample(4).images()[0].tolist() == [[0], [3], [6], [9]]
    train, held_out = pictures.split()
    assert held_out.images()[0].ravel().tolist() == [2, 7]
    assert (len(train), train.notes) == (8, ())


def test_at_most_so_many_are_read_and_spread_evenly_and_the_very_files_are_found_again(tmp_path):
    for index in range(9):
        save(tmp_path / "nine" / f"{index}.png", picture(index))
    assert read(tmp_path / "nine", most=3)[0][:, 0, 0, 0].tolist() == [0, 4, 8]
    for index in range(3):
        save(tmp_path / "set" / "a" / f"{index}.png", picture(index))
    folder = tmp_path / "set"
    hashes = open_pictures(folder, SHAPE).hashes()
    assert list(hashes) == ["a/0.png", "a/1.png", "a/2.png"]
    touch(folder, "another.txt", "b/1.png")
    again = open_again(folder, hashes, SHAPE)
    assert again.images()[0][:, 0, 0, 0].tolist() == [0, 1, 2]
    save(folder / "a" / "1.png", picture(9))
    (folder / "a" / "2.png").unlink()
    expected = r"2 of 3 pictures that are not there or have changed \(a/1.png, a/2.png\)"
    with pytest.raises(ValueError, match=expected):
        open_again(folder, hashes, SHAPE)


# What becomes of their pixels.


def test_larger_pictures_just_cover_the_input_and_are_cut_off_on_both_sides(tmp_path):
    save(tmp_path / "a.png", np.repeat(np.repeat(picture(7), 5, 0), 9, 1))
    pixels = np.zeros((6, 24, 3), np.uint8)
    pixels[:, 8:16] = 200
    save(tmp_path / "b.png", pixels)
    images, _ = read(tmp_path)
    assert images.shape == (2, *SHAPE)
    assert np.all(images[0] == 7)
    assert np.all(images[1] == 200)


def resized_and_cropped(pixels, image_size):
    """Resize of the shorter side to 256/224 and centre crop, as torchvision does it with Pillow."""
    height, width = pixels.shape[:2]
    shorter = round(image_size * 256 / 224)
    size = [side * shorter // min(height, width) for side in (height, width)]
    resized = Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR)
    top, left = (round((side - image_size) / 2) for side in size)
    return np.asarray(resized)[top : top + image_size, left : left + image_size].astype(int)


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (100, 90), (64, 300), (224, 224)])
@pytest.mark.parametrize("image_size", [224, 64])
def test_pixels_are_those_of_the_whole_picture_resized_and_then_cropped(size, image_size):
    pixels = photograph(*size)
    shape = (image_size, image_size, 3)
    found = pixels_of(encoded(pixels, "PNG"), shape, RESIZED_AND_CROPPED).astype(int)
    # Where the box begins is not a whole number, which moves the weights in their last bits.
    assert np.abs(found - resized_and_cropped(pixels, image_size)).max() <= 1


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_pictures_are_turned_as_their_exif_data_says(number, kind, tmp_path):
    image = Image.fromarray(photograph(70, 96))
    exif = Image.Exif()
    exif[0x0112] = number
    options = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(image, kind, exif=exif.tobytes(), **options)
    with Image.open(io.BytesIO(content)) as opened:
        upright = ImageOps.exif_transpose(opened).convert("RGB")
    np.testing.assert_array_equal(np.asarray(image_of(content, "RGB", turns=True)), upright)
    expected = pixels_of(encoded(upright, "PNG"), (32, 32, 3), RESIZED_AND_CROPPED)
    np.testing.assert_array_equal(pixels_of(content, (32, 32, 3), RESIZED_AND_CROPPED), expected)
    # One is read upright in its own size, with the channels of the input.
    (tmp_path / f"a.{kind}").write_bytes(content)
    for channels in (1, 3):
        found = open_pictures(tmp_path, (6, 8, channels))[0].shape
        assert found == (*upright.size[::-1], channels)


# v >> 8, as TensorFlow's own decoder of PNG files does.
SIXTEEN = np.array([[0, 255, 256, 511, 4096, 32768, 65279, 65535]] * 6, np.uint16)
UPPER = [0, 0, 1, 1, 16, 128, 254, 255]
TWELVE = np.array([[0, 15, 16, 31, 256, 2048, 4079, 4095]] * 6, np.uint16)
WIDE = {
    "a.png": lambda: encoded(SIXTEEN, "PNG"),
    "a.tiff": lambda: encoded(SIXTEEN, "TIFF"),
    "a.pgm": lambda: b"P5 8 6 65535\n" + SIXTEEN.astype(">u2").tobytes(),
    "twelve.tiff": lambda: tiff_of_12_bits(TWELVE),
}


@pytest.mark.parametrize("name", WIDE)
def test_of_12_and_16_bits_the_upper_8_are_taken(name, tmp_path):
    (tmp_path / name).write_bytes(WIDE[name]())
    images, _ = read(tmp_path)
    assert images[0, 0].tolist() == [[value] * 3 for value in UPPER]
    np.testing.assert_array_equal(read(tmp_path, (6, 8, 1))[0], images[..., :1])


def test_16_bits_are_read_as_tensorflow_reads_them_and_turned(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**16, (6, 8)).astype(np.uint16)
    save(tmp_path / "a.png", values)
    expected = tf.io.decode_png((tmp_path / "a.png").read_bytes(), channels=3).numpy()
    np.testing.assert_array_equal(read(tmp_path)[0][0], expected)
    image = Image.fromarray(SIXTEEN.T.copy())
    exif = image.getexif()
    exif[0x0112] = 8  # to be turned counterclockwise
    image.save(tmp_path / "a.png", exif=exif)
    assert read(tmp_path)[0][0, 0, :, 0].tolist() == UPPER


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pictures_of_32_bits_are_named_and_left_out(kind, tmp_path):
    save(tmp_path / "good.png", picture(1))
    save(tmp_path / "wide.tiff", SIXTEEN.astype(kind))
    # A PFM file, whose format Pillow calls that of PGM files of 16 bits.
    float_map = b"Pf\n8 6\n-1.0\n" + (SIXTEEN / 65535).astype("<f4").tobytes()
    (tmp_path / "float.pgm").write_bytes(float_map)
    images, pictures = read(tmp_path)
    assert len(images) == 1
    assert pictures.notes[0].startswith("2 of 3 files are no pictures")


# Damage.

DAMAGED = {
    **corrupt_files(),
    "65500.jpg": jpeg_of(65500),
    "20000.png": png_of(20000, 20000, 1),
    "half.gif": encoded(photograph(), "GIF")[:2000],
    "half.bmp": encoded(photograph(), "BMP")[:2000],
    "half.webp": encoded(photograph(), "WEBP")[:900],
    "half.tiff": encoded(photograph(), "TIFF")[:2000],
}


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
def test_a_jpeg_that_breaks_off_is_truncated(options):
    jpeg = encoded(photograph(203, 299), **options)
    for share in (0.3, 0.5, 0.9):
        for end in (b"", bytes(5000)):  # copies that broke off are often filled with zeros
            with pytest.raises(ValueError, match="truncated"):
                image_of(jpeg[: int(share * len(jpeg))] + end, "RGB", turns=True)
    image_of(jpeg + b"\0" * 100 + b"what a camera writes behind it", "RGB", turns=True)


def test_a_preview_inside_does_not_hide_that_a_jpeg_breaks_off():
    pixels, preview, whole = photograph(203, 299), io.BytesIO(), io.BytesIO()
    Image.fromarray(pixels[:40, :40]).save(preview, "JPEG")
    exif = b"Exif\0\0" + preview.getvalue()
    Image.fromarray(pixels).save(whole, "JPEG", exif=exif)
    jpeg = whole.getvalue()
    image_of(jpeg, "RGB", turns=True)
    for share in (0.5, 0.9):
        cut = len(exif) + int(share * (len(jpeg) - len(exif)))
        with pytest.raises(ValueError, match="truncated"):
            image_of(jpeg[:cut] + bytes(len(jpeg) - cut), "RGB", turns=True)


def test_damaged_pictures_are_left_out_and_named(tmp_path):
    save(tmp_path / "cat" / "a.png", picture(1))
    save(tmp_path / "dog" / "z.png", picture(2))
    for name, content in DAMAGED.items():
        (tmp_path / "dog" / f"{name}.png").write_bytes(content)
    images, pictures = read(tmp_path)
    assert images[:, 0, 0, 0].tolist() == [1, 2]
    assert pictures.labels.tolist() == [0, 1]
    assert list(pictures.hashes()) == ["cat/a.png", "dog/z.png"]
    left_out = f"{len(DAMAGED)} of {len(DAMAGED) + 2} files are no pictures, "
    assert pictures.notes[0].startswith(left_out)
    (tmp_path / "dog" / "z.png").unlink()
    assert list(pictures.hashes()) == ["cat/a.png"]
    words = r"no picture that can be read \(\d+ of \d+ files are no pictures"
    with pytest.raises(ValueError, match=words):
        read(tmp_path / "dog")


def test_a_preparation_is_what_its_file_and_its_words_say_and_the_crop_lies_in_the_centre():
    for known in (COVERING, RESIZED_AND_CROPPED, AS_IN_IMAGENET):
        assert Preprocessing.from_json(known.to_json()) == known
    assert RESIZED_AND_CROPPED.geometry((256, 512), (224, 224)) == ((256, 512), (16, 144))
    assert COVERING.geometry((100, 100), (32, 64)) == ((64, 64), (16, 0))
    assert COVERING.geometry((32, 64), (32, 64)) == ((32, 64), (0, 0))
    assert "until its shorter side has 256 pixels" in RESIZED_AND_CROPPED.describe((224, 224))
    assert "until it covers 32x64 pixels" in COVERING.describe((32, 64))
    assert "as it is stored" in AS_IN_IMAGENET.describe((224, 224))
