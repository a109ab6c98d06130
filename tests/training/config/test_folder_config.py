import io

import pytest
from PIL import Image
from rich.console import Console

from sat_tf.commands.train import folder_config
from sat_tf.messages import RunError
from sat_tf.training.config import FOLDER, SIZES, FolderChoice, choose, read_config


def choice(num_train, side=300):
    size = next(size for size in SIZES if num_train < size.below)
    return FolderChoice("photos", "/photos", num_train, side, size)


def pictures(root, count, side=70):
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (side, side + 10)).save(root / name / f"{number}.png")
    return root


def test_the_shipped_configuration_is_the_one_that_is_chosen_for_hundreds():
    config = read_config(FOLDER)
    changed = read_config(FOLDER, choice(500).overrides())
    assert changed.model_copy(update={"name": "folder"}) == config


@pytest.mark.parametrize(
    ("num_train", "side", "image_size", "batch_size"),
    [
        (500, 300, 64, 16),
        (5_000, 300, 96, 32),
        (50_000, 300, 128, 64),
        (1_000_000, 300, 224, 256),
        (5_000, 70, 64, 32),  # no larger than the pictures
        (5_000, 2, 32, 32),
        (5_000, None, 96, 32),
        (40, 300, 64, 8),  # four batches at least
        (3, 300, 64, 2),
    ],
)
def test_sizes_follow_from_the_set(num_train, side, image_size, batch_size):
    config = read_config(FOLDER, choice(num_train, side).overrides())
    assert config.data.options["image_size"] == image_size
    assert config.stages.float.batch_size == batch_size
    assert config.stages.quantized.batch_size == batch_size
    assert config.stages.quantized.epochs == config.stages.float.epochs // 2
    assert config.model.options["stem_stride"] == (2 if image_size >= 64 else 1)


def test_a_folder_is_all_that_is_needed(tmp_path, monkeypatch):
    root = pictures(tmp_path / "my 'photos'", 10)
    monkeypatch.chdir(tmp_path)
    console = Console(file=io.StringIO(), width=300)
    config = folder_config("my 'photos'", console, overrides=["stages.float.epochs=9"], seed=3)
    assert config.name == "my_photos_"
    assert config.data.options == {"data_dir": str(root), "image_size": 64}
    assert (config.stages.float.epochs, config.seed) == (9, 3)
    assert console.file.getvalue() == (
        "Chosen for 16 pictures to train on: mobilenet_v2 of width 0.35, 64x64 pixels, batches of "
        "4, 60 + 30 epochs; --set changes each.\n"
    )


@pytest.mark.parametrize(("epochs", "warmups"), [(9, (0.9, 1)), (1, (0.1, 1)), (10, (2, 1))])
def test_stages_that_are_made_short_warm_up_for_less(tmp_path, epochs, warmups):
    root = pictures(tmp_path / "photos", 5)
    settings = [f"stages.float.epochs={epochs}"]
    config = folder_config(str(root), Console(file=io.StringIO()), overrides=settings)
    found = config.stages.float.warmup_epochs, config.stages.quantized.warmup_epochs
    assert found == pytest.approx(warmups)
    longer = [*settings, "stages.float.warmup_epochs=0.5"]
    config = folder_config(str(root), Console(file=io.StringIO()), overrides=longer)
    assert config.stages.float.warmup_epochs == 0.5


def test_a_file_decides_everything_else(tmp_path):
    root = pictures(tmp_path / "photos", 5)
    console = Console(file=io.StringIO())
    config = folder_config(str(root), console, str(FOLDER))
    expected = read_config(FOLDER, [f"data.options.data_dir={root}"])
    assert (config, console.file.getvalue()) == (expected, "")


def test_folders_without_classes_are_named(tmp_path):
    with pytest.raises(RunError, match=r"(?s)--data: .*received no pictures, expected"):
        choose(tmp_path)


def test_a_link_that_leads_to_itself_is_no_folder(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(RunError, match=r"--data: .*loop: not found; expected a folder"):
        choose(tmp_path / "loop")
