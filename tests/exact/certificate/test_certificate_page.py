import dataclasses
import html.parser
import re

import pytest

import sat_tf
from sat_tf.exact.certificate.certificate import certificate_page
from sat_tf.exact.certificate.output_comparison import OutputCount
from sat_tf.exact.certificate.proof import verify_file
from sat_tf.exact.certificate.proof_images import ImagesFrom
from sat_tf.exact.certificate.rules import PORTABILITY, UNEXPLAINED, rule_table
from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS

VOID = {"meta", "path", "img", "wbr"}


class Outline(html.parser.HTMLParser):
    """Tags that are open, text, and rows of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.rows = 0

    def handle_starttag(self, tag, attrs):
        links = [value for name, value in attrs if name in ("src", "href")]
        self.links += [link for link in links if not link.startswith("data:")]
        self.rows += tag == "tr"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    found.close()
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def certificate(small, small_file, small_images, tmp_path_factory):
    path = tmp_path_factory.mktemp("proof") / "certificate.json"
    found = sat_tf.verify_tflite(small, small_file, small_images, certificate_path=path)
    return found, path.with_suffix(".html").read_text()


@pytest.mark.thorough
def test_the_page_beside_the_certificate_shows_it(certificate):
    found, page = certificate
    assert page == certificate_page(found)
    shown = outline(page)
    outputs = found.runtimes["xnnpack"].outputs  # values, as nothing says that they are classes
    tables = outputs, found.runtimes, found.portability, found.codes, rule_table().rows
    assert shown.rows == sum(1 + len(rows) for rows in tables)
    assert f"0 of {found.codes_compared:,} codes differ" in shown.text
    for text in (found.sha256, found.images_sha256, *(t.name for t in found.codes)):
        assert text in shown.text
    # It loads nothing, and says how many of its levels a tensor uses.
    assert shown.links == []
    assert not re.search(r"<script|url\(|@import|https?:", page)
    four_bits = [tensor for tensor in found.codes if tensor.bits == 4]
    assert four_bits
    for tensor in four_bits:
        assert len(tensor.counts) in (15, 16)  # signed ones leave out the lowest
        assert f">{tensor.codes_used} of {len(tensor.counts)}</td>" in page


def test_names_are_text_and_never_markup(certificate):
    found, _ = certificate
    first = dataclasses.replace(found.codes[0], name="<script>&")
    refused = {"reference": "no such kernel"}
    changed = dataclasses.replace(found, file="<b>.tflite", codes=[first], refused=refused)
    page = certificate_page(changed)
    shown = outline(page)
    said = "LiteRT, reference kernels does not run the file: no such kernel"
    for text in ("<script>&", "<b>.tflite", said):
        assert text in shown.text
    assert "<script" not in page


def test_a_difference_stands_out_and_names_the_first_tensor(certificate):
    found, _ = certificate
    xnnpack = found.runtimes["xnnpack"]
    tensors = [
        dataclasses.replace(tensor, codes_differing=index)
        for index, tensor in enumerate(xnnpack.tensors)
    ]
    runtimes = {"xnnpack": dataclasses.replace(xnnpack, tensors=tensors)}
    page = certificate_page(dataclasses.replace(found, runtimes=runtimes))
    assert 'class="verdict bad"' in page
    assert f"The first tensor that differs is <b>{tensors[1].name}</b>" in page


def test_cells_have_the_colours_of_the_table_of_rules(certificate):
    found, _ = certificate
    counts = {"alone_compared": 1000, "alone_differing": 123, "explained_share": 0.0}
    count = dataclasses.replace(found.trained[0], **counts)
    claim = dataclasses.replace(found.portability[0], differing={XNNPACK_SETS[1].name: 7})
    page = certificate_page(dataclasses.replace(found, trained=[count], portability=[claim]))
    (unexplained,), not_portable = UNEXPLAINED.rules, PORTABILITY.rules[0]
    assert f'<span class="{unexplained.note}">12.3 %</span>' in page
    assert f"in amber where {unexplained.condition}." in page
    assert f'<span class="{not_portable.headline}">7 differ</span>' in page


def test_top1_is_shown_where_there_are_labels(small_file, small_images):
    found = verify_file(small_file, small_images, [0] * len(small_images))
    share = f"{100 * found.top1['simulation']:.2f} %"
    assert f"simulation {share}" in outline(certificate_page(found)).text


def test_a_notebook_shows_the_verdict_and_every_runtime(certificate):
    found, _ = certificate
    assert str(found.verdict.words).startswith(f"0 of {found.codes_compared:,} codes differ")
    assert repr(found) == (
        f"<Certificate: {found.verdict.words} (model.tflite, {found.num_images} images)>"
    )
    html = found._repr_html_()
    assert outline(html).rows > len(found.runtimes)
    assert all(f"<td>{name}</td>" in html for name in found.runtimes)
    different = dataclasses.replace(found, warnings=["<b>new</b>"])._repr_html_()
    assert "Note: &lt;b&gt;new&lt;/b&gt;" in different


@pytest.mark.parametrize(
    ("right", "agreement", "seed", "kind", "words"),
    [
        # Labels decide, where there are some: a trained model may have other classes.
        ({"float": 0.98, "tflite": 0.975}, 0.9, None, "good", ""),
        ({"float": 0.98, "tflite": 0.96}, 0.9, None, "watch", "96.00 % right, 2.00 points below"),
        ({"float": 0.98, "tflite": 0.68}, 0.7, None, "bad", "68.00 % right, 30.00 points below"),
        ({"float": 0.60, "tflite": 0.68}, 0.7, None, "good", ""),
        ({}, 0.995, None, "good", ""),
        ({}, 0.98, None, "watch", "98.00 % of 200 images have the class"),
        ({}, 0.31, None, "bad", "31.00 % of 200 images have the class"),
        ({}, 0.31, 0, "watch", "31.00 % of 200 images have the class"),  # random images
    ],
)
def test_what_is_lost_of_the_float_model_is_said_before_the_codes(
    certificate, right, agreement, seed, kind, words
):
    found, _ = certificate
    lost = dataclasses.replace(
        found,
        float_outputs=[OutputCount("head", (3,), 200, agreement, 0.1, 0.1, 1.0, "softmax")],
        accuracy={"head": right} if right else {},
        images_from=ImagesFrom("pictures", seed),
        # Its answers part from the trained model's, which is red by itself.
        reference="simulation",
        trained=[],
        machine=None,
        input_ranges=[],
    )
    codes = f"0 of {found.codes_compared:,} codes differ"
    assert lost.verdict.kind == kind
    assert lost.verdict.words.startswith(words or codes)
    assert codes in lost.verdict.words
    assert f'<p class="verdict {kind}">{words or codes}' in certificate_page(lost)
    assert lost.is_exact


@pytest.mark.thorough
@pytest.mark.parametrize(("ties", "kind"), [(0, None), (2, "plain"), (3, "watch")])
def test_largest_values_that_8_bits_do_not_tell_apart_are_said(certificate, ties, kind):
    found, _ = certificate
    count = OutputCount("head", (3,), 200, 0.99, 0.1, 0.1, 1.0, "softmax", ties=ties)
    runtimes = {"xnnpack": dataclasses.replace(found.runtimes["xnnpack"], outputs=[count])}
    tied = dataclasses.replace(found, reference="keras", trained=[], runtimes=runtimes)
    said = [(note.words[:40], note.kind) for note in tied.trained_notes]
    expected = f"head: {ties} of 200 images have several largest values"[:40], kind
    assert said == [expected] * bool(kind)
