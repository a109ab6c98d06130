"""`sat-tf verify` on files with states: frame by frame, and beside files of whole windows."""

import numpy as np
import pytest

import sat_tf
from sat_tf.exact.certificate.certificate import read_certificate
from sat_tf.exact.tflite.contents import read_contents
from tests.export.test_states import FRAMES, POLICY, STATES, keyword_net, tied


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A streaming model, its file, those of windows of 8 and 100 frames, and frames."""
    folder = tmp_path_factory.mktemp("streams")
    model = tied()
    model.save(folder / "quantized.keras")
    sat_tf.export_tflite(model, folder / "stream.tflite")
    for frames in (8, 100):
        whole = sat_tf.quantize_model(keyword_net(frames=frames), POLICY)
        whole.set_weights(model.get_weights())
        sat_tf.export_tflite(whole, folder / f"window_{frames}.tflite")
    np.save(folder / "frames.npy", FRAMES)
    return folder


@pytest.mark.parametrize("model", ["", "quantized.keras"])
def test_a_file_and_its_model_are_proved_frame_by_frame_and_in_windows(
    folder, model, tmp_path, sat
):
    source = folder / model if model else ""
    words = f"--images {folder}/frames.npy --num_images 20 --out {tmp_path}/proof"
    said = sat(f"verify {source} {folder}/stream.tflite {words} --window {folder}/window_8.tflite")
    assert "first_out fed back to first" in said
    assert "window_8.tflite, which takes windows of 8 frames, gives the same: 0 of " in said
    certificate = read_certificate(tmp_path / "proof" / "certificate.json")
    run = certificate.sequence
    assert (run.states, run.frames, run.window.frames, run.codes_differing) == (STATES, 20, 16, 0)
    assert (run.keras is not None) == bool(model)
    # Frames are the first ones of the sequence, not some from all of it.
    direct = sat_tf.export.verify_file(folder / "stream.tflite", FRAMES[:20], progress=False)
    assert direct.images_sha256 == certificate.images_sha256


def test_a_window_of_other_weights_is_red_or_refused(folder, tmp_path, sat):
    model = tied()
    conv = model.get_layer("quant_conv")
    conv.set_weights([0.9 * array for array in conv.get_weights()])
    sat_tf.export_tflite(model, tmp_path / "other.tflite")
    said = sat(f"verify {tmp_path}/other.tflite --window {folder}/window_8.tflite", status=(1, 2))
    assert "gives other codes: " in said or "on the same grids" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("stream.tflite --window {}/window_100.tflite", "does not fit 64 frames (it takes 100)"),
        ("window_8.tflite --window {}/stream.tflite", "does not fit 64 frames (frame, scores)"),
        ("stream.tflite --state first_out=first", "received --state, expected none"),
        (
            "stream.tflite --window {0}/window_8.tflite --certificate {0}/frames.npy",
            "--window with",
        ),
    ],
)
def test_windows_and_states_that_do_not_fit_are_refused(folder, words, message, sat):
    said = sat(f"verify {folder}/{words.format(folder)}", status=2)
    assert message in said


def test_a_window_beside_a_file_without_states_is_refused(files, folder, tmp_path, sat):
    sat(f"export {files}/quantized.keras --out {tmp_path}/model.tflite")
    words = f"verify {tmp_path}/model.tflite --window {folder}/window_8.tflite"
    assert "for a file without states" in sat(words, status=2)


def test_operators_of_another_tool_are_compared_frame_by_frame(folder, tmp_path, sat):
    # A file without its settings is one of another tool.
    foreign = tmp_path / "foreign.tflite"
    content = (folder / "stream.tflite").read_bytes()
    foreign.write_bytes(content.replace(b"sat_tf", b"xyz_ab"))
    assert not read_contents(foreign.read_bytes(), "foreign").is_ours
    states = " ".join(f"--state {output}={name}" for output, name in STATES.items())
    said = sat(f"verify {foreign} {states} --images {folder}/frames.npy")
    assert "LiteRT with XNNPACK: 0 of " in said
    said = sat(f"verify {foreign} --state scores=first", status=2)
    assert "both int8 of one shape, scale and zero point" in said
