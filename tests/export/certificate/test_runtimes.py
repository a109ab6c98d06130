import numpy as np
import pytest

import sat_tf
from sat_tf.export.certificate import runtimes
from sat_tf.export.certificate.inputs import GIVEN
from sat_tf.export.certificate.page import certificate_page
from sat_tf.export.certificate.proof import prove, read_subject
from sat_tf.export.kernels import kernel_sets
from sat_tf.export.operations import linear
from sat_tf.export.operations.graph import simulate, simulate_on
from tests.export import zoo

NAMES = ("builtin", "reference", "arm_xnnpack", "arm_xnnpack_unfused", "arm_builtin")
SIMULATED = {"arm_xnnpack", "arm_xnnpack_unfused", "arm_builtin"}


@pytest.fixture(scope="module")
def model():
    """A quantized model with convolutions."""
    return zoo.quantized("preactivation")


@pytest.fixture(scope="module")
def images(model):
    """Some images for it."""
    return zoo.images_for(model, 8)


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    """A file that is the same on all processors, and one with packed convolutions, which is not."""
    folder = tmp_path_factory.mktemp("files")
    for pack in ("none", "int4"):
        sat_tf.export_tflite(model, folder / f"{pack}.tflite", pack=pack)
    return {pack: read_subject(folder / f"{pack}.tflite") for pack in ("none", "int4")}


@pytest.fixture(scope="module")
def certificates(files, images):
    return {
        pack: prove(subject, images, None, images_from=GIVEN, runtimes=NAMES)
        for pack, subject in files.items()
    }


@pytest.mark.parametrize("pack", ["none", "int4"])
def test_runtimes_here_have_the_codes_of_their_own_kernels(certificates, pack):
    found = certificates[pack]
    for name in {"builtin", "reference"} & set(found.runtimes):
        assert found.runtimes[name].own_compared > 1000
        assert found.runtimes[name].own_differing == 0
    assert found.runtimes["xnnpack"].own == []
    assert found.codes_differing == 0


@pytest.mark.parametrize("pack", ["none", "int4"])
def test_simulated_runtimes_are_those_of_a_whole_simulation(certificates, files, images, pack):
    graph = files[pack].graph
    known = simulate(graph, images)
    for name in SIMULATED:
        counts = certificates[pack].runtimes[name]
        expected = simulate(graph.on(runtimes.RUNTIMES[name].kernels), images)
        assert {tensor.name: tensor.codes_differing for tensor in counts.tensors} == {
            tensor: int(np.sum(known[tensor] != expected[tensor]))
            for tensor in graph.integer_tensors
        }
        assert (counts.is_simulated, counts.delegation) == (True, None)
        assert counts.codes_compared == certificates[pack].codes_compared


def test_a_portable_file_has_the_same_codes_on_arm_and_a_packed_one_has_not(certificates):
    for name in ("arm_xnnpack", "arm_xnnpack_unfused"):
        assert certificates["none"].runtimes[name].codes_differing == 0
        assert certificates["int4"].runtimes[name].codes_differing > 0
    assert certificates["none"].runtimes["arm_builtin"].codes_differing > 0


def test_what_is_the_same_is_not_simulated_again(files, images, monkeypatch):
    graph = files["none"].graph
    known = simulate(graph, images)
    monkeypatch.setattr(linear, "sums", None)
    assert simulate_on(graph.on(kernel_sets.ARM), images, known, set()).keys() == known.keys()


def test_titles_say_which_runtimes_are_simulated(certificates):
    page = certificate_page(certificates["int4"])
    for title in ("Arm, XNNPACK (simulated)", "Arm, builtin kernels (simulated)"):
        assert title in page
    assert "not as simulated" in page


def test_the_usual_runtimes_are_some_of_the_table():
    assert set(runtimes.USUAL_RUNTIMES) < set(runtimes.RUNTIMES)
    assert [kind.name for kind in runtimes.chosen(["arm_builtin"])] == ["xnnpack", "arm_builtin"]
