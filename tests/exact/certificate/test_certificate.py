import dataclasses
import hashlib
import json
import pathlib
import re

import numpy as np
import pytest
import tf_keras as keras
from markupsafe import escape

import sat_tf
from sat_tf.exact.certificate import proof_images, rules, runtimes
from sat_tf.exact.certificate.certificate import Certificate, certificate_page, read_certificate
from sat_tf.exact.certificate.comparison import CodesRecorder
from sat_tf.exact.certificate.output_comparison import FEWEST_VALUES, MOST_ERROR, compared_channels
from sat_tf.exact.certificate.proof import prove, read_subject, verify_file
from sat_tf.exact.certificate.proof_images import GIVEN
from sat_tf.exact.certificate.record import FEWEST_IMAGES
from sat_tf.exact.certificate.rules import portability_in_words, sentence
from sat_tf.exact.certificate.runtimes import PortabilityClaim, portability_of
from sat_tf.exact.kernels import kernel_sets
from sat_tf.exact.litert.processes import Machine
from sat_tf.exact.operations import windows
from sat_tf.exact.operations.graph import Graph, batches, simulate, simulate_on
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.operations.tabled import joined
from sat_tf.exact.tflite.tensors import Codes, Tensor
from tests.export import zoo
from tests.export.proofs import calibrated, proved
from tests.export.zoo import images_for


@pytest.fixture(scope="module")
def written(small_file, small_images, tmp_path_factory):
    path = tmp_path_factory.mktemp("certificate") / "certificate.json"
    return verify_file(small_file, small_images[:2], certificate_path=path), path


def test_a_certificate_is_read_back_as_it_was_written(written):
    certificate, path = written
    assert read_certificate(path) == certificate
    # Counts take one line a tensor.
    lines = [line for line in path.read_text().splitlines() if '"counts"' in line]
    assert len(lines) == len(certificate.codes)
    assert all(line.rstrip(",").endswith("]") for line in lines)


def test_a_certificate_of_an_earlier_version_says_nothing_of_what_is_new(written, tmp_path):
    certificate, path = written
    values = json.loads(path.read_text())
    for field in dataclasses.fields(Certificate):
        defaults = field.default, field.default_factory
        if any(default is not dataclasses.MISSING for default in defaults):
            values.pop(field.name, None)  # files without states have no sequence
    for count in values["runtimes"].values():
        for name in ("kernels", "is_simulated", "own", "outputs"):
            del count[name]
    del values["is_portable"]
    (tmp_path / "c.json").write_text(json.dumps(values))
    older = read_certificate(tmp_path / "c.json")
    assert (older.codes, older.agreement) == (certificate.codes, certificate.agreement)
    assert (older.float_outputs, older.accuracy, older.portability) == ([], {}, [])
    assert older.runtimes["xnnpack"].own == []
    assert not older.is_portable
    assert not re.search("Where this holds|not as simulated", certificate_page(older))


EARLIER_NAMES = pathlib.Path(__file__).with_name("earlier_names.json")


def test_fields_of_earlier_names_and_runtimes_of_later_ones_are_read(tmp_path):
    older = read_certificate(EARLIER_NAMES)
    values = json.loads(EARLIER_NAMES.read_text())
    assert older.float_layers == values["islands"] == ["norm"]
    assert [dataclasses.asdict(claim) for claim in older.portability] == values["holds"]
    assert older.cpu_fallback == values["elsewhere"]
    assert not older.is_portable
    older.write(tmp_path / "c.json")
    assert read_certificate(tmp_path / "c.json") == older
    written = json.loads((tmp_path / "c.json").read_text())
    assert written.keys() - values.keys() == {"float_layers", "portability", "cpu_fallback"}
    # A runtime that a later version knows has its name on the page.
    runtimes_of_later = {**older.runtimes, "later": older.runtimes["arm_xnnpack"]}
    later = dataclasses.replace(older, refused={"last": "gone"}, runtimes=runtimes_of_later)
    page = certificate_page(later)
    assert "<td>later</td>" in page
    assert "last does not run the file: gone" in page


def test_the_guide_and_the_page_show_the_table_of_colours(written):
    guide = pathlib.Path(__file__).parents[3] / "docs" / "guides" / "verify.md"
    assert rules.rule_table().to_markdown() in guide.read_text()
    text = " ".join(guide.read_text().split())
    assert rules.VALUE_RULE in text
    page = written[1].with_suffix(".html").read_text()
    assert all(escape(rule.condition) in page for rule in rules.rule_table().rows)
    colours = [{rule.headline, rule.note} for topic in rules.TOPICS for rule in topic.rules]
    assert set.union(*colours) == {"", *rules.COLOURS}
    assert len({topic.name for topic in rules.TOPICS}) == len(rules.TOPICS)


@pytest.fixture(scope="module")
def graph(small_file):
    return read_graph(small_file.read_bytes(), "file")


def recorded(graph, images, size):
    recorder = CodesRecorder(graph, dict.fromkeys(graph.integer_tensors, "KIND"))
    for start in range(0, len(images), size):
        recorder.add(simulate(graph, images[start : start + size]))
    return recorder.result()


def test_codes_are_counted_and_hashed_over_all_images(graph, small_images):
    simulated, tensors = simulate(graph, small_images), recorded(graph, small_images, 5)
    assert tensors == recorded(graph, small_images, 32)
    made = [op.output for op in graph.operations if graph.tensors[op.output].codes]
    assert [tensor.name for tensor in tensors] == made == list(graph.integer_tensors)
    for tensor in tensors:
        codes = simulated[tensor.name]
        values, counts = np.unique(codes, return_counts=True)
        found = {tensor.lowest + i: n for i, n in enumerate(tensor.counts) if n}
        assert found == dict(zip(values.tolist(), counts.tolist(), strict=True))
        assert tensor.sha256 == hashlib.sha256(codes.astype(np.int8).tobytes()).hexdigest()
        assert sum(tensor.counts) == codes.size
        assert 2 ** (tensor.bits - 1) < len(tensor.counts) <= 2**tensor.bits


def test_random_images_and_their_hash_are_the_same_every_time():
    images = proof_images.random_images((4, 4, 3), 3, 0)
    assert (images.shape, images.dtype) == ((3, 4, 4, 3), np.uint8)
    # RandomState promises its stream, so that certificates hold for years.
    assert images.reshape(-1)[:4].tolist() == [172, 47, 117, 192]
    assert np.array_equal(proof_images.random_images((4, 4, 3), 2, 0), images[:2])
    # An input may be one number.
    numbers, rows = (proof_images.random_images(shape, 2, 0) for shape in ((), (1,)))
    assert numbers.tolist() == rows[:, 0].tolist()
    # A hash is of pixels, and not of their layout.
    turned = np.asfortranarray(images)
    assert proof_images.images_hash(turned) == proof_images.images_hash(images)
    assert proof_images.images_hash(images[::-1]) != proof_images.images_hash(images)


def test_batches_are_the_images_in_order(graph):
    images = proof_images.random_images((8, 9, 3), 600, 0)
    found = batches(images, graph)
    assert len(found) > 1
    assert np.array_equal(np.concatenate(found), images)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("unit", [1, 320, 1920])
def test_scores_beside_boxes_in_pixels_are_lost(unit, rng):
    boxes, scores = rng.uniform(0, unit, (200, 4, 4, 4)), rng.beta(0.2, 0.8, (200, 4, 4, 1))
    values = np.concatenate([boxes, scores], axis=-1)
    step = np.ptp(values) / 255  # one scale of 256 codes for all
    found = compared_channels(np.round(values / step) * step, values)
    is_bad = unit > 1
    assert (found.is_bad, found.off, found.num_channels) == (is_bad, int(is_bad), 5)
    assert (found.channels[0].error < 0.01) != is_bad
    if is_bad:
        assert found.channels[0].channel == found.fewest_values.channel == 4
        assert found.fewest_values.values <= 3
        assert "left of 3,200 in channel 4; 1 channel is off" in sentence("channels", found)


def test_the_error_is_in_standard_deviations_of_its_channel(rng):
    values = rng.normal(0, [[100.0, 1.0]], (5000, 2))
    found = compared_channels(values + np.array([1.0, 0.3]), values)
    worst, other = found.channels
    assert (worst.channel, other.channel) == (1, 0)
    assert (worst.error, other.error) == pytest.approx((0.3, 0.01), rel=0.05)
    assert found.is_bad == (worst.error > MOST_ERROR)
    ages = np.linspace(20.0, 60.0, 64)  # a single number is one channel
    found = compared_channels(ages + 1.0, ages)
    assert sentence("channels", found).endswith(" deviations, 64 different values left of 64")
    assert (found.is_bad, found.num_channels) == (False, 1)


def test_channels_that_end_a_row_of_ever_quieter_ones_are_counted_and_not_judged(rng):
    values = rng.normal(0, np.geomspace(0.02, 5.0, 64), (500, 64))  # such as pixels at a border
    noisy = values + rng.normal(0, 0.06, values.shape)
    found = compared_channels(noisy, values)
    assert (found.is_bad, found.off) == (False, 0)
    assert found.quiet > 10
    assert "; not judged, as they hardly vary: " in sentence("channels", found)
    noisy[:, 60] = 0.0
    assert compared_channels(noisy, values).off == 1
    # A score beside boxes in pixels is of another unit, and noise may drown loud channels too.
    score = rng.integers(0, 2, 400) * rng.uniform(0.9, 1.0, 400)
    values = np.stack([*rng.normal(16, 3.2, (2, 400)), np.full(400, 200.0), score], axis=1)
    found = compared_channels(np.round(values / 0.8) * 0.8, values)
    assert (found.is_bad, found.off, found.quiet) == (True, 1, 0)
    values = rng.normal(0, np.linspace(5.0, 12.0, 64), (500, 64))
    found = compared_channels(values + rng.normal(0, 2.0, values.shape), values)
    assert (found.is_bad, found.quiet) == (True, 0)
    assert 20 < found.off < 40


def test_few_values_are_left_where_there_were_many(rng):
    scores = rng.uniform(0, 1, (100, 1))
    for kept in (FEWEST_VALUES - 1, FEWEST_VALUES):
        grid = np.round(scores * (kept - 1)) / (kept - 1)
        assert compared_channels(grid, scores).is_bad == (kept < FEWEST_VALUES)
    # The float model has no more: a step, or a count.
    counts = rng.integers(0, 4, (100, 1)).astype(np.float32)
    assert not compared_channels(counts, counts).is_bad


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_a_constant_channel_is_measured_by_the_whole_output(value, rng):
    values = np.stack([rng.normal(0, 2, 100), np.full(100, value)], axis=1)
    for error, is_bad in ((0.02, False), (9.0, True)):
        assert compared_channels(values + np.array([0.0, error]), values).is_bad == is_bad
    for error, is_bad in ((0.0, False), (1.0, True)):
        assert compared_channels(values[:, 1:] + error, values[:, 1:]).is_bad == is_bad


def test_the_worst_of_many_channels_are_kept_and_a_nan_is_off(rng):
    values = rng.normal(0, 1, (50, 100))
    found = compared_channels(values + np.linspace(0, 0.2, 100), values)
    assert (len(found.channels), found.num_channels) == (16, 100)
    assert found.channels[0].error == max(one.error for one in found.channels)
    broken = values.copy()
    broken[3, 1] = np.nan
    found = compared_channels(broken, values)
    assert (found.off, found.channels[0].channel, found.channels[0].error) == (1, 1, np.inf)


NAMES = ("builtin", "reference", "arm_xnnpack", "arm_xnnpack_unfused", "arm_builtin")
SIMULATED = {"arm_xnnpack", "arm_xnnpack_unfused", "arm_builtin"}


@pytest.fixture(scope="module")
def images():
    return images_for(zoo.quantized("preactivation"), 8)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file that is the same on all processors, and one with packed convolutions, which is not."""
    folder = tmp_path_factory.mktemp("files")
    for pack in ("none", "int4"):
        sat_tf.export_tflite(zoo.quantized("preactivation"), folder / f"{pack}.tflite", pack=pack)
    return {pack: read_subject(folder / f"{pack}.tflite") for pack in ("none", "int4")}


@pytest.fixture(scope="module")
def certificates(files, images):
    return {
        pack: prove(subject, images, None, images_from=GIVEN, runtimes=NAMES)
        for pack, subject in files.items()
    }


@pytest.mark.essential
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
        for tensor in counts.tensors:
            assert tensor.codes_differing == np.sum(known[tensor.name] != expected[tensor.name])
        assert (counts.is_simulated, counts.delegation) == (True, None)
        assert counts.codes_compared == certificates[pack].codes_compared


def test_a_portable_file_has_the_same_codes_on_arm_and_a_packed_one_has_not(certificates):
    for name in ("arm_xnnpack", "arm_xnnpack_unfused"):
        assert certificates["none"].runtimes[name].codes_differing == 0
        assert certificates["int4"].runtimes[name].codes_differing > 0
    assert certificates["none"].runtimes["arm_builtin"].codes_differing > 0
    page = certificate_page(certificates["int4"])
    for title in ("Arm, XNNPACK (simulated)", "Arm, builtin kernels (simulated)", "not as simulat"):
        assert title in page


def test_what_is_the_same_is_not_simulated_again(files, images, monkeypatch):
    graph = files["none"].graph
    known = simulate(graph, images)
    monkeypatch.setattr(windows, "sums", None)
    assert simulate_on(graph.on(kernel_sets.ARM), images, known, set()).keys() == known.keys()


def test_the_usual_runtimes_are_some_of_the_table():
    assert set(runtimes.USUAL_RUNTIMES) < set(runtimes.RUNTIMES)
    assert [kind.name for kind in runtimes.chosen(["arm_builtin"])] == ["xnnpack", "arm_builtin"]


HALF, GRID = Codes(np.float32(0.5), -128), Codes(np.float32(0.25), 0)


def _tied_product() -> Graph:
    """0.25 · 0.5 / 0.25 is a half, whatever the scale of the grid that both sides share."""
    tensors = {"a": GRID, "b": HALF, "y": GRID, "joined": GRID}
    named = {name: Tensor(name, (1, 1, 1), codes) for name, codes in tensors.items()}
    operations = Pair(("a", "b"), "y", Pointwise.PRODUCT), joined(("y", "a"), "joined", 2)
    return Graph("tied", named, operations, (), "joined")


def _proved(path, layers, policy, size=6):
    """The certificate of layers behind a stem, and what it says of each tensor."""
    L = keras.layers
    image = keras.Input((size, size, 3), name="image")
    tensor = L.Conv2D(4, 3, padding="same", activation="relu", name="stem")(image)
    model = keras.Model(image, L.Dense(3, name="head")(layers(tensor, L)))
    report, found = proved(calibrated(model, policy), path, images_for(model, 4))
    assert report.is_portable == found.is_portable
    return found, {tensor: claim for claim in found.portability for tensor in claim.tensors}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Certificate:
    path = tmp_path_factory.mktemp("holds") / "model.tflite"
    return _proved(path, lambda tensor, L: L.GlobalAveragePooling2D(name="mean")(tensor), 3)[0]


def test_a_certificate_says_of_each_operator_how_it_is_known(certificate):
    known = {claim.operators: (claim.basis, claim.inputs) for claim in certificate.portability}
    # 6 x 6 stored integers from -128 to 127: a mean reads a tensor of 8 bits.
    assert known["MEAN"] == ("proved for every input", 36 * 255 + 1)
    assert known["CONV_2D"] == known["FULLY_CONNECTED"] == ("by its rule", 0)
    assert certificate.is_portable
    words = portability_in_words(certificate.portability).words
    assert "1 operator proved for all 9,181 inputs" in words

    spoken = [tensor for claim in certificate.portability for tensor in claim.tensors]
    assert len(spoken) == len(set(spoken))
    assert {count.name for count in certificate.tensors} <= set(spoken)
    page = certificate_page(certificate)
    for text in ("Where this holds", "NNAPI", "proved for every input"):
        assert text in page
    assert (certificate.machine.delegate, certificate.warnings) == ("XNNPACK", [])
    assert certificate.machine.architecture


def test_the_verdict_of_a_file_that_is_not_portable_names_the_machine(certificate):
    # So many images that they tell whether answers are kept, of no range that could be wrong.
    certificate = dataclasses.replace(certificate, num_images=FEWEST_IMAGES, input_ranges=[])
    claims = [*certificate.portability, *portability_of(_tied_product())]
    page = certificate_page(dataclasses.replace(certificate, portability=claims))
    assert re.search(r'"verdict watch">0 of [\d,]+ codes differ on \w+<', page)
    assert re.search(r'"verdict good">0 of [\d,]+ codes differ<', certificate_page(certificate))


def test_a_product_that_is_not_portable_is_counted_for_each_kernel_set():
    (product, moved) = portability_of(_tied_product())
    assert product.operators == "MUL"
    assert product.differing["xnnpack_arm"] == product.differing["xnnpack_arm_unfused"] > 0
    assert "xnnpack_x86" not in product.differing
    assert moved.is_portable
    assert portability_in_words([product, moved]) == (
        "It holds for x86 only: on Arm, 1 operator (MUL) may compute other codes.",
        "watch",
    )


def test_nothing_is_said_of_codes_behind_a_layer_left_float(path):
    def layers(tensor, L):
        tensor = L.LayerNormalization(name="norm")(tensor)
        tensor = L.Conv2D(4, 3, activation="relu", name="behind")(tensor)
        return L.Flatten(name="flat")(tensor)

    policy = sat_tf.BitPolicy.mobile(4, unsupported="float")
    certificate, claims = _proved(path, layers, policy)
    assert not certificate.is_portable
    assert claims["stem"].basis == "by its rule"
    assert {claims[name].basis for name in ("behind", "flat", "head")} == {"behind float values"}
    words = portability_in_words(certificate.portability).words
    assert "before float values are the same on x86 and on Arm" in words
    assert "Nothing is said of the codes after float values" in words
    assert "not known" in certificate_page(certificate)


@pytest.mark.parametrize("pooled", [False, True])
def test_float_sums_are_the_same_everywhere_and_float_means_are_not(pooled, path):
    def layers(tensor, L):
        branch = L.Conv2D(4, 3, padding="same", name="branch")(tensor)
        tensor = L.Add(name="sum")([tensor, branch])
        return (L.GlobalAveragePooling2D() if pooled else L.Flatten())(tensor)

    certificate, claims = _proved(path, layers, sat_tf.BitPolicy.paper(4), size=8)
    why = "one float32 operation a value, which all processors round alike"
    assert claims["sum"].why == why
    assert certificate.is_portable != pooled


def test_a_delegate_that_is_not_known_is_warned_of_and_float_files_are_not_portable():
    doubts = {"YNNPACK": "the delegate YNNPACK here, and may round", "none": "no delegate"}
    for delegate, words in doubts.items():
        assert words in str(Machine("x86_64", [], delegate).doubt)
    floats = PortabilityClaim("DEQUANTIZE", ["y"], "float", "processors differ in the last bits")
    assert "float32" in portability_in_words([floats]).words
