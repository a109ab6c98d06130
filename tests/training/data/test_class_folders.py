import os

import pytest
from PIL import Image

from sat_tf.pictures.folder_tree import read_pictures, read_tree
from sat_tf.training.data.class_folders import load_folder_tree, median_side


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_classes_are_numbered_in_the_order_of_their_names(tmp_path):
    touch(
        tmp_path, "train/b/2.JPEG", "train/a/1.jpg", "train/b/1.png", "val/a/1.JPEG", "val/b/x.bmp"
    )
    tree = read_tree(tmp_path)
    assert tree.class_names == ["a", "b"]
    assert [path[len(str(tmp_path)) :] for path in tree.train.paths] == [
        "/train/a/1.jpg",
        "/train/b/1.png",
        "/train/b/2.JPEG",
    ]
    assert tree.train.labels == [0, 1, 1]
    assert tree.held_out.labels == [0, 1]


@pytest.mark.parametrize("name", ["val", "validation", "test"])
def test_the_held_out_part_has_one_of_three_names(tmp_path, name):
    touch(tmp_path, "train/a/1.jpg", f"{name}/a/1.jpg")
    assert len(read_tree(tmp_path).held_out.paths) == 1


def test_a_test_folder_beside_val_is_passed_over(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "val/a/1.jpg", "test/1.jpg", "test/2.jpg")
    assert read_tree(tmp_path).held_out.paths == [str(tmp_path / "val/a/1.jpg")]


def test_pictures_without_labels_are_those_of_all_folders_and_a_fifth_is_held_out(tmp_path):
    touch(tmp_path, *(f"{name}.jpg" for name in range(7)), "in/a.png", "in/of/b.bmp", "in/.c.jpg")
    touch(tmp_path, "notes.txt", "c.webp")
    tree = read_pictures(tmp_path)
    assert tree.class_names == []
    assert (len(tree.train.paths), len(tree.held_out.paths)) == (8, 2)
    assert {*tree.train.labels, *tree.held_out.labels} == {0}
    assert not set(tree.train.paths) & set(tree.held_out.paths)
    other = tmp_path / "other"
    os.rename(tmp_path / "in", tmp_path.parent / "in")
    os.makedirs(other)
    for path in tmp_path.glob("*.*"):
        path.rename(other / path.name)
    (tmp_path.parent / "in").rename(other / "in")
    moved = [os.path.relpath(path, other) for path in read_pictures(other).held_out.paths]
    assert moved == [os.path.relpath(path, tmp_path) for path in tree.held_out.paths]


def test_pictures_without_labels_may_be_parted_and_too_few_are_told(tmp_path):
    touch(tmp_path, "train/1.jpg", "train/2.jpg", "val/3.jpg")
    tree = read_pictures(tmp_path)
    assert (len(tree.train.paths), len(tree.held_out.paths)) == (2, 1)
    (tmp_path / "val" / "3.jpg").unlink()
    with pytest.raises(ValueError, match=r"val: received 0 pictures, expected 1 or more"):
        read_pictures(tmp_path)
    touch(tmp_path, "few/1.jpg")
    with pytest.raises(ValueError, match=r"few: received 1 pictures, expected 2 or more"):
        read_pictures(tmp_path / "few")
    with pytest.raises(ValueError, match=r"does not exist; expected a folder of pictures"):
        read_pictures(tmp_path / "nowhere")


def test_hidden_and_other_files_are_passed_over_and_inner_folders_are_not(tmp_path):
    touch(
        tmp_path, "train/a/images/1.jpg", "train/a/.1.jpg", "train/a/boxes.txt", "train/notes.txt"
    )
    touch(tmp_path, "train/.git/1.jpg", "val/a/1.jpg")
    tree = read_tree(str(tmp_path))
    assert tree.train.paths == [str(tmp_path / "train/a/images/1.jpg")]


def test_a_folder_that_is_not_there_or_of_another_kind_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere, which does not exist; expected a folder with"):
        read_tree(tmp_path / "nowhere")
    touch(tmp_path, "1.jpg")
    with pytest.raises(ValueError, match=r"1\.jpg, which is not a folder; expected a folder with"):
        read_tree(tmp_path / "1.jpg")
    with pytest.raises(ValueError, match="received 3; expected the path of a folder"):
        read_tree(3)


def names(split, root):
    return [os.path.relpath(path, root) for path in split.paths]


def test_of_folders_of_classes_a_fifth_of_each_is_held_out(tmp_path):
    touch(tmp_path, *(f"cat/{number}.jpg" for number in range(10)))
    touch(tmp_path, *(f"dog/{number}.png" for number in range(2)), "ox/1.jpg", "notes.txt")
    tree = read_tree(tmp_path)
    assert tree.class_names == ["cat", "dog", "ox"]
    assert tree.train.labels == [0] * 8 + [1, 2]
    assert tree.held_out.labels == [0, 0, 1]
    every = names(tree.train, tmp_path) + names(tree.held_out, tmp_path)
    assert sorted(every) == sorted({*every})
    assert len(every) == 13
    assert tree.notes == (
        "folders of classes: of each class a fifth is held out, by a hash of the names; 1 with one "
        "picture, which is trained on",
    )


def test_what_is_held_out_depends_on_the_names_alone(tmp_path):
    places = [tmp_path / "here", tmp_path / "there" / "train"]
    for place in places:
        touch(place, *(f"cat/{number}.jpg" for number in range(10)))
        touch(place, *(f"dog/{number}.jpg" for number in range(10)))
    here, there = read_tree(places[0]), read_tree(places[1].parent)
    assert names(here.held_out, places[0]) == names(there.held_out, places[1])
    # Written down: the same on every machine and with every version.
    assert names(here.held_out, places[0]) == ["cat/3.jpg", "cat/8.jpg", "dog/6.jpg", "dog/9.jpg"]
    assert there.notes[0].startswith("train without val: of each class a fifth is held out")


def test_folders_beside_train_that_are_not_read_are_named(tmp_path):
    touch(
        tmp_path, *(f"{part}/cat/{number}.jpg" for part in ("train", "held_out") for number in "12")
    )
    (note,) = read_tree(tmp_path).notes
    assert note.endswith("; not read: held_out; val is the name of what is held out")


def test_pictures_beside_folders_or_without_any_are_named(tmp_path):
    with pytest.raises(ValueError, match="received a folder without folders and pictures; expect"):
        read_tree(tmp_path)
    touch(tmp_path, "1.jpg", "2.png", "notes.txt")
    with pytest.raises(
        ValueError, match=r"received 2 pictures and no folders \(1.jpg, 2.png\).*such as cat/1.jpg"
    ):
        read_tree(tmp_path)
    touch(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/notes.txt")
    with pytest.raises(ValueError, match="2 problems") as error:
        read_tree(tmp_path)
    assert "received 2 pictures beside the folders of classes (1.jpg, 2.png)" in str(error.value)
    assert "received 1 classes without pictures (dog)" in str(error.value)


def test_a_folder_with_nothing_to_train_on_is_named(tmp_path):
    touch(tmp_path, "val/a/1.jpg", "images/1.jpg")
    with pytest.raises(
        ValueError, match="the folders images, val and none to train on; expected t"
    ):
        read_tree(tmp_path)


def test_one_picture_a_class_is_too_few(tmp_path):
    touch(tmp_path, "a/1.jpg", "b/1.jpg")
    with pytest.raises(ValueError, match="received one picture of each class; expected two or mor"):
        read_tree(tmp_path)


def test_the_folder_inside_is_proposed_where_an_archive_has_put_one_more(tmp_path):
    touch(tmp_path, "flowers/rose/1.jpg", "flowers/lily/1.jpg")
    with pytest.raises(
        ValueError, match=r"nothing but flowers; expected .*name .*/flowers instead"
    ):
        read_tree(tmp_path)


def test_classes_of_one_part_only_are_named(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/c/1.jpg")
    with pytest.raises(ValueError, match="2 problems") as error:
        read_tree(tmp_path)
    assert "train: received 1 classes that val does not have (b)" in str(error.value)
    assert "val: received 1 classes that train does not have (c)" in str(error.value)


def test_parts_without_classes_or_pictures_are_named(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "val/1.jpg")
    with pytest.raises(ValueError, match=r"val: received no folders of classes; expected those of"):
        read_tree(tmp_path)
    touch(tmp_path, "val/a/notes.txt", "train/b/notes.txt", "val/b/1.txt")
    with pytest.raises(ValueError, match="2 problems") as error:
        read_tree(tmp_path)
    assert "train: received 1 classes without pictures (b)" in str(error.value)
    assert "val: received no pictures" in str(error.value)


def test_a_train_folder_without_folders_is_named(tmp_path):
    touch(tmp_path, "train/1.jpg", "val/1.jpg")
    with pytest.raises(ValueError, match="train: received no folders in it; expected one for each"):
        read_tree(tmp_path)


def test_folders_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    touch(tmp_path, "train/a/1.jpg", "train/a/more/2.jpg", "val/a/1.jpg")
    scan = os.scandir

    def guarded(place):
        if str(place).endswith("more"):
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(ValueError, match=r"a/more: received a folder that cannot be read \(Perm"):
        read_tree(tmp_path)


def test_links_to_folders_are_followed_once(tmp_path):
    touch(tmp_path, "elsewhere/2.jpg", "train/a/1.jpg", "val/a/1.jpg")
    (tmp_path / "train/a/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "train/a")
    (tmp_path / "elsewhere/round").symlink_to(tmp_path / "elsewhere")
    assert read_tree(tmp_path).train.paths == [
        str(tmp_path / "train/a/1.jpg"),
        str(tmp_path / "train/a/more/2.jpg"),
    ]


def test_held_out_classes_without_pictures_are_named(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/notes.txt")
    with pytest.raises(ValueError, match=r"val: received 1 classes without pictures \(b\)"):
        read_tree(tmp_path)


def test_pipes_and_sockets_are_an_error_and_links_to_nothing_are_corrupt_pictures(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "cat" / "inside").mkdir(parents=True)
        (tmp_path / split / "cat" / "inside" / "a.png").touch()
    (tmp_path / "train" / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "train" / "cat" / "round.png").symlink_to("round.png")
    names = [os.path.relpath(path, tmp_path / "train") for path in read_tree(tmp_path).train.paths]
    assert names == ["cat/gone.png", "cat/inside/a.png", "cat/round.png"]
    os.mkfifo(tmp_path / "train" / "cat" / "pipe.png")
    (tmp_path / "val" / "cat" / "device.png").symlink_to("/dev/zero")
    with pytest.raises(
        ValueError,
        match=r"2 pipes, sockets or devices .*pipe\.png, .*device\.png\); expected files",
    ):
        read_tree(tmp_path)


def test_small_pictures_are_remarked_upon(tmp_path):
    for part in ("train", "val"):
        for number in range(3):
            path = touch(tmp_path, f"{part}/cat/{number}.png") / f"{part}/cat/{number}.png"
            Image.new("RGB", (2, 2 + number)).save(path)
    assert median_side(read_tree(tmp_path).train.paths) == 2
    (note,) = load_folder_tree(tmp_path, image_size=32).notes
    assert "a shorter side of at most 2 pixels, and are enlarged to 32" in note
    assert load_folder_tree(tmp_path, image_size=4).notes == ()


def test_pictures_that_cannot_be_read_have_no_size(tmp_path):
    touch(tmp_path, "1.png")
    os.mkfifo(tmp_path / "2.png")
    assert median_side([str(tmp_path / "1.png"), str(tmp_path / "2.png")]) is None
