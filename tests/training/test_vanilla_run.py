import io

import numpy as np
import pytest
import tf_keras as keras
from rich.console import Console

from sat_tf.output_folder import FLOAT_MODEL, QUANTIZED_MODEL
from sat_tf.training.config import parse_config
from sat_tf.training.loop.runner import train
from sat_tf.training.loop.start import is_ordinary
from sat_tf.training.run_folder import RunFolder

CONFIG = """
name: vanilla
data: {name: digits, options: {image_size: 16}}
model: {name: mobilenet_v1, options: {width_multiplier: 0.125, stem_stride: 1}}
stages:
  float: {steps: 2, batch_size: 64, warmup_epochs: 0}
calibration: {num_images: 64, final_statistics: true}
export: {verify_images: 8}
distribution: none
"""


@pytest.mark.slow
def test_a_run_starts_from_an_ordinary_model_and_another_one_from_its_file(tmp_path):
    def run(name, *overrides):
        folder = RunFolder(tmp_path / name)
        results = train(parse_config(CONFIG, overrides), folder, Console(file=io.StringIO()))
        return folder, results

    first, results = run("first", "training.start=vanilla")
    model = keras.models.load_model(first.file(FLOAT_MODEL), compile=False)
    assert is_ordinary(model)
    assert results.parameters == model.count_params()
    assert results.codes_differing == 0
    given = f"training.float_model={first.file(FLOAT_MODEL)}"
    as_before = ("training.keep=last", "stages.quantized.base_learning_rate=0.05")
    again, from_file = run("again", given, *as_before)
    assert from_file.float_top1 == results.float_top1
    one, other = (
        keras.models.load_model(folder.file(QUANTIZED_MODEL), compile=False).get_weights()
        for folder in (first, again)
    )
    assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))
