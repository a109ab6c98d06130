"""Runs feed their models the range that these take, and say where that cannot be right."""

import io

import numpy as np
import pytest
from rich.console import Console

from sat_tf.messages import RunError
from sat_tf.quantizers.input_range import PIXELS, range_of
from sat_tf.training.config import parse_config
from sat_tf.training.data.batches import ArraySource
from sat_tf.training.loop import runner
from sat_tf.training.loop.start import FedSource, check_range, fed_source, float_model
from sat_tf.training.run_folder import RunFolder
from tests.training.small import model_of_small_range, small_images

CONFIG = """
name: ranges
data: {name: digits}
model: {name: mobilenet_v1}
policy: {weight_bits: 8, activation_bits: 8}
stages:
  float: {steps: 2, batch_size: 32, warmup_epochs: 0}
  quantized: {base_learning_rate: 1.0e-5}
calibration: {num_images: 64}
export: {verify_images: 16}
training: {start: vanilla}
distribution: none
"""
SOURCE = ArraySource(small_images(test=128))


@pytest.mark.parametrize("value", [(0, 1), (-1, 1), "torch", "caffe"], ids=str)
def test_a_source_gives_what_the_range_makes_of_its_pixels(value):
    found = range_of(value)
    fed = FedSource(SOURCE, found)
    assert (fed.pixels, SOURCE.pixels) == (SOURCE, SOURCE)
    for give in (
        lambda source: next(iter(source.held_out_batches(batch_size=32)))[0].numpy(),
        lambda source: next(iter(source.training_batches(batch_size=32, seed=1)))[0].numpy(),
        lambda source: source.training_sample(9, seed=1),
        lambda source: source.held_out_sample(9)[0],
    ):
        values, expected = give(fed), found.fed(give(SOURCE))
        assert values.dtype == np.float32
        assert np.array_equal(values, expected)
    assert fed_source(SOURCE, PIXELS) is SOURCE


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model_of_small_range().save(folder / "float.keras")
    model_of_small_range(inside=True).save(folder / "rescaled.keras")
    return folder


def _train(folder, console, *overrides):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "load_source", lambda *_, **__: SOURCE)
        return runner.train(parse_config(CONFIG, overrides), RunFolder(folder), console)


def test_a_run_refuses_pixels_for_a_model_of_0_to_1_before_anything_is_written(files, tmp_path):
    folder, model = tmp_path / "run", f"training.float_model={files}/float.keras"
    with pytest.raises(RunError) as error:
        _train(folder, Console(file=io.StringIO()), model)
    said = str(error.value)
    assert "is fed input_range=(0, 255), expected the range that it was trained with" in said
    assert "top-1 on 128 labelled images is 33.6 % with (0, 255), 100.0 % with (0, 1)" in said
    assert said.endswith("; set policy.input_range=[0, 1].")
    assert not folder.exists()


@pytest.mark.thorough
def test_a_run_with_the_range_of_its_model_is_fed_it_from_start_to_file(files, tmp_path):
    console = Console(file=io.StringIO(), width=200)
    model = f"training.float_model={files}/float.keras"
    results = _train(tmp_path / "run", console, model, "policy.input_range=[0, 1]")
    assert results.float_top1 == 1.0
    assert results.quantized_top1 == 1.0
    assert results.tflite_top1 == 1.0
    assert results.codes_differing == 0
    assert "input_range" not in console.file.getvalue()


def _checked(files, name, given, *overrides):
    config = parse_config(CONFIG, [f"training.float_model={files}/{name}.keras", *overrides])
    console = Console(file=io.StringIO(), width=2000)
    model, fed = float_model(config, SOURCE)
    assert fed == range_of(given)
    check_range(config, model, SOURCE, fed, console)
    return console.file.getvalue()


def test_a_range_that_the_policy_states_is_kept_with_a_note(files):
    said = _checked(files, "float", (0, 255), "policy.input_range=[0, 255]")
    assert said.startswith("Note: ")
    assert "seems to be (0, 1)" in said


def test_a_teacher_that_is_fed_what_it_was_not_trained_with_is_refused(files):
    def check(name, given):
        config = parse_config(CONFIG, [f"recipes.distillation={{teacher: {files}/{name}.keras}}"])
        check_range(config, None, SOURCE, range_of(given), Console(quiet=True))

    with pytest.raises(RunError, match="a Rescaling or a Normalization layer in front") as error:
        check("float", (0, 255))
    assert "or set policy.input_range=[0, 1] for both" in str(error.value)
    check("float", (0, 1))
    check("rescaled", (0, 255))


def test_a_model_that_rescales_inside_is_fed_pixels(files):
    assert _checked(files, "rescaled", (0, 255)) == ""
