import subprocess
import sys

import numpy as np
import pytest

import sat_tf
from sat_tf.export.certificate import runtimes
from sat_tf.export.litert import micro, processes
from tests.export import zoo
from tests.export.layer_models import MODELS
from tests.export.local import own_count

NEEDS_MICRO = "TFLite Micro is an extra: pip install 'sat-tf[micro]'"


@pytest.fixture
def installed():
    pytest.importorskip("tflite_micro", reason=NEEDS_MICRO)


@pytest.fixture(scope="module")
def plain_file(small, tmp_path_factory):
    """The file of the small model, without kernels of 4 bits."""
    path = tmp_path_factory.mktemp("micro") / "model.tflite"
    sat_tf.export_tflite(small, path, pack="none")
    return path


def test_one_that_is_not_installed_is_an_error_with_the_fix(monkeypatch):
    monkeypatch.setattr(runtimes, "is_installed", lambda name: name != "micro")
    with pytest.raises(ValueError, match=r"received 'micro'.*pip install 'sat-tf\[micro\]'"):
        runtimes.chosen(["micro"])


def test_a_file_is_compared_tensor_by_tensor(installed, small, plain_file, small_images):
    found = sat_tf.verify_tflite(small, plain_file, small_images, runtimes=["reference", "micro"])
    counts = found.runtimes["micro"]
    assert counts.own_compared > 0
    assert counts.own_differing == 0
    assert counts.outputs_differing == 0
    assert counts.delegation is None
    assert counts.codes_compared == found.codes_compared
    assert found.versions["tflite-micro"]


@pytest.mark.parametrize("name", zoo.EACH)
def test_models_of_the_zoo_have_the_codes_of_the_kernels(installed, name, path):
    model = zoo.quantized(name)
    sat_tf.export_tflite(model, path, float_head=zoo.ZOO[name].float_head, pack="none")
    content = path.read_bytes()
    assert own_count(content, zoo.images_for(model, 4), "micro")[1] == 0


def test_several_images_are_run_one_by_one(installed, plain_file, small_images):
    content = plain_file.read_bytes()
    together = micro.MicroRuntime(content, keep_tensors=True)
    outputs = together.run(small_images[:3])
    (name, *_) = together._made.values()
    kept = together.tensors([name])[name]
    assert len(outputs) == len(kept) == 3
    alone = micro.MicroRuntime(content, keep_tensors=False)
    np.testing.assert_array_equal(outputs[2:], alone.run(small_images[2:3]))


def test_an_arena_that_is_too_small_grows(installed, plain_file, small_images, monkeypatch):
    monkeypatch.setattr(micro, "_SMALLEST_ARENA_BYTES", 2**14)
    monkeypatch.setattr(micro, "_BYTES_PER_VALUE", 0)
    runtime = micro.MicroRuntime(plain_file.read_bytes(), keep_tensors=True)
    assert np.all(np.isfinite(runtime.run(small_images[:1])))


def test_what_it_refuses_is_named_and_not_printed(installed, path, capfd):
    model = MODELS["floats"].quantized()
    sat_tf.export_tflite(model, path, pack="none")
    images = zoo.images_for(model, 1)
    found = sat_tf.verify_tflite(model, path, images, runtimes=["micro"])
    assert "Didn't find op for builtin opcode" in found.refused["micro"]
    assert "micro" not in found.runtimes
    assert "Didn't find op" not in capfd.readouterr().err


def test_a_product_with_4_bits_is_refused_with_the_reason(installed, small, path):
    sat_tf.export_tflite(small, path, pack="auto")
    reason = processes.refusals(path.read_bytes(), ["micro"])["micro"]
    assert "fully_connected_common.cc" in reason
    assert "kTfLiteInt4" in reason


def test_a_truncated_file_is_refused(installed, plain_file):
    reason = processes.refusals(plain_file.read_bytes()[:500], ["micro"])["micro"]
    assert reason


def test_files_without_it_are_read_without_its_package():
    code = "import sys; import sat_tf.export.litert.micro; print('tflite_micro' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=processes.child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
