import os

from PIL import Image

from sat_tf.training.data.class_folders import load_folder_tree, median_side, read_tree


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_small_pictures_are_remarked_upon(tmp_path):
    for part in ("train", "val"):
        for number in range(3):
            path = touch(tmp_path, f"{part}/cat/{number}.png") / f"{part}/cat/{number}.png"
            Image.new("RGB", (2, 2 + number)).save(path)
    assert median_side(read_tree(tmp_path)[0].paths) == 2
    (note,) = load_folder_tree(tmp_path, image_size=32).notes
    assert "a shorter side of at most 2 pixels, and are enlarged to 32" in note
    assert load_folder_tree(tmp_path, image_size=4).notes == ()


def test_pictures_that_cannot_be_read_have_no_size(tmp_path):
    touch(tmp_path, "1.png")
    os.mkfifo(tmp_path / "2.png")
    assert median_side([str(tmp_path / "1.png"), str(tmp_path / "2.png")]) is None
