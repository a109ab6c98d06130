import functools
import json
import re

import pytest
from rich.console import Console

from sat_tf import output_folder
from sat_tf.commands.verification_table import conclude
from sat_tf.exact.tflite.preprocessing import RESIZED_AND_CROPPED
from sat_tf.messages import RunError
from sat_tf.qat.policy import BitPolicy
from sat_tf.report import curves, report
from sat_tf.report.layer_table import LayerRow
from sat_tf.report.report import headline_of_folder, write_layers
from sat_tf.report.results import Results
from sat_tf.training import run_folder
from sat_tf.training.config import config_text, parse_config
from sat_tf.training.loop.runner import _weights, write_report
from sat_tf.training.run_folder import EPOCHS, EpochMetrics, RunFolder
from tests.exact.certificate.test_certificate_page import outline
from tests.messages.test_tables import texts
from tests.training.report_folder import HOSTILE, fill


@pytest.fixture
def folder(tmp_path):
    return fill(RunFolder(tmp_path))


def shown(folder):
    write_report(folder, parse_config(folder.read_text(output_folder.CONFIG)))
    return folder.file(output_folder.REPORT).read_text(encoding="utf-8")


def change(folder, name=output_folder.RESULTS, **changes):
    folder.write_json(name, {**json.loads(folder.read_text(name)), **changes})


def test_the_report_holds_all_there_is_to_know(folder):
    text = outline(shown(folder)).text
    for words in (
        *("97.03 % top-1 in 636,432 bytes", "0 of 54,379,166 codes differ"),
        *("float model", "99.90 %", "Learning curves", "block_2_relu", "15 of 16", "dorefa"),
        *("constant 0.316", "423,018", "296,109", "certificate.html"),
        *("builtin: 1,234 of 54,379,166 codes differ", "2.21.0", "weight_bits: 4", "seed"),
    ):
        assert words in text, words


def test_results_of_earlier_versions_are_read_without_their_deployed_model(folder):
    results = Results.read(folder)
    change(folder, deployed_top1=0.5, deployed_top5=None)
    assert Results.read(folder) == results


@pytest.mark.parametrize(
    ("lost", "kind", "words"),
    [
        (-0.02, "good", ""),
        (0.009, "good", ""),
        (0.011, "watch", ", 1.10 points lost"),
        (0.029, "watch", ", 2.90 points lost"),
        (0.031, "bad", ", 3.10 points lost"),
    ],
)
def test_the_headline_is_amber_behind_a_point_lost_and_red_behind_three(folder, lost, kind, words):
    change(folder, float_top1=0.9703 + lost)
    page = shown(folder)
    assert f'<p class="verdict {kind}">97.03 % top-1 in 636,432 bytes{words}</p>' in page
    assert f'<span class="{kind}">{-100 * lost:+.2f} points</span>' in page
    assert "amber where more than 1 point is lost of the float model" in page


@pytest.mark.parametrize(("images", "kind"), [(539, "bad"), (29, "watch")])
def test_what_is_lost_is_in_the_headline_that_ends_a_command(folder, images, kind):
    change(folder, float_top1=0.9703 + 0.031, held_out_images=images, tflite_images=images)
    change(folder, output_folder.CERTIFICATE, float_outputs=[])
    headline = headline_of_folder(folder)
    assert headline.kind == kind
    on = f"-3.10 points of top-1 compared with the float model, on {images} held-out images"
    assert headline.words == on
    assert conclude("model.tflite", headline, Console(quiet=True)) == (kind != "bad")


def test_the_headline_is_red_where_codes_differ_however_good_the_file_is(tmp_path):
    page = shown(fill(RunFolder(tmp_path), codes_differing=7, layer=HOSTILE))
    assert '<p class="verdict bad">97.03 % top-1 in 636,432 bytes</p>' in page
    assert '<span class="bad">7 of 54,379,166 codes differ</span>' in page
    assert '<span class="bad">Compared with the float model: masks &amp; more: ' in page
    assert '<span class="good">Compared with the float model: classes: ' in page
    # Hostile names are text.
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 2


@pytest.mark.parametrize(
    ("agreement", "kind"),
    [(0.995, "good"), (0.98, "watch"), (0.7, "bad"), (0.0, "bad"), (None, "plain")],
)
def test_without_labels_the_headline_is_what_is_kept_of_the_float_model(folder, agreement, kind):
    """The page of a model that was calibrated without a run; of None there is no float model."""
    for name in (output_folder.CONFIG, run_folder.METRICS, output_folder.RESULTS):
        folder.file(name).unlink()
    certificate = json.loads(folder.read_text(output_folder.CERTIFICATE))
    outputs = certificate["float_outputs"] if agreement is not None else []
    for output, share in zip(outputs, (agreement, 1.0), strict=False):
        output["agreement"] = share
    change(folder, output_folder.CERTIFICATE, float_outputs=outputs)
    report.write_report(folder)
    page = folder.file(output_folder.REPORT).read_text(encoding="utf-8")
    words = "Accuracy is not measured"
    assert words in page
    if agreement is not None:
        words = f"{100 * agreement:.2f} % of 539 images have the class of the float model"
    assert f'<p class="verdict {kind}">{words}</p>' in page
    assert '<span class="good">0 of 54,379,166 codes differ</span>' in page


def test_how_a_given_model_was_trained_is_said(folder):
    assert "very images" not in shown(folder)
    tried = {"learning_rate": 0.001, "tried_learning_rates": {"0.001": 0.4, "0.01": None}}
    change(folder, given_float_model=True, start_top1=0.95, kept_epoch=2, **tried)
    text = outline(shown(folder)).text
    for words in (
        "The float model may have been trained on these very images.",
        "quantized model before training",
        "0.001, chosen by a trial of 2 from 0.001 to 0.01",
        "2, the best on the held-out images",
    ):
        assert words in text, words


def test_it_loads_nothing_and_links_only_to_the_certificate(folder):
    page = shown(folder)
    for word in ("<script", "url(", "@import", "http:", "https:", "<link"):
        assert word not in page
    assert page.count("<img ") == page.count('src="data:') == 4
    assert set(outline(page).links) == {"certificate.html", "certificate.json"}


@pytest.mark.parametrize(
    "missing",
    [
        (output_folder.RESULTS, output_folder.LAYERS, output_folder.CERTIFICATE),
        (run_folder.METRICS,),
        sorted({*run_folder.FILES} - {output_folder.CONFIG}),
    ],
)
def test_what_is_not_there_is_left_out(folder, missing):
    for name in missing:
        folder.file(name).unlink(missing_ok=True)
    page = shown(folder)
    assert ("Not finished" in page) == (output_folder.RESULTS in missing)
    assert ("Learning curves" in page) == (run_folder.METRICS not in missing)
    outline(page)


def test_layers_classes_and_preprocessing_are_those_of_the_run(folder):
    write_layers(folder, [LayerRow(name="only", kind="Dense", parameters=3)])
    folder.write_text(output_folder.LABELS, "cat\n<b>dog</b>\n")
    folder.write_text(output_folder.PREPROCESSING, RESIZED_AND_CROPPED.to_json())
    page = shown(folder)
    assert "<b>only</b>" in page
    assert "2: cat, &lt;b&gt;dog&lt;/b&gt;" in page
    assert RESIZED_AND_CROPPED.describe() in page
    folder.write_text(output_folder.PREPROCESSING, "{}")
    with pytest.raises(RunError, match=r"preprocessing.json: received a damaged file"):
        shown(folder)


def test_losses_that_are_not_of_the_same_thing_and_no_training_are_said_to_be_so(folder):
    assert "The two losses" not in shown(folder)
    recipes = "recipes={distillation: {weight: 0.5}, label_smoothing: {amount: 0.1}}"
    config = parse_config(folder.read_text(output_folder.CONFIG), [recipes])
    folder.write_text(output_folder.CONFIG, config_text(config))
    assert "that of training has the teacher and smoothed labels." in shown(folder)
    assert "Trained in" in shown(folder)
    folder.file(run_folder.METRICS).unlink()
    assert "Calibrated in" in shown(folder)


def test_the_weights_are_named_with_the_reason_where_the_policy_names_none():
    policy = BitPolicy(weight_bits=2)
    assert _weights(policy) == "l1: the policy names none, and it is the best known at 2 bits"
    assert _weights(BitPolicy(weight_bits=2, weight_quantizer="lsq")) == "lsq"
    as_is = BitPolicy(weight_bits=2, latent_start="as_is")
    assert _weights(as_is) == "dorefa: the policy names none"


# -- learning curves -------------------------------------------------------------------------------

learning_curves = functools.partial(curves.learning_curves, metrics=EPOCHS)


def epoch(stage="float", number=1, **changes):
    fields = {"epoch": number, "step": 2 * number, "learning_rate": 0.1, "loss": 0.44}
    more = {"train_top1": 0.9, "held_out_loss": 0.05, "held_out_top1": 0.8, "seconds": 1.0}
    return EpochMetrics(stage=stage, **{**fields, **more, "data_loss": 0.03, **changes})


def drawn(*rows):
    return {re.search('alt="(.*?)"', chart)[1]: texts(chart) for chart in learning_curves(rows)}


def test_stages_are_named_in_every_chart_as_text_and_levels_are_of_those_that_have_them():
    charts = drawn(epoch(), epoch("quantized", clipping_level=3.0))
    assert list(charts)[-1] == "Clipping level"
    assert all({"float", "quantized"} < set(words) for words in charts.values())
    assert r"a$b_\x1b[2J$" in drawn(epoch(stage="a$b_\x1b[2J$"))["Loss"]


def test_the_loss_of_the_images_and_the_one_with_weight_decay_are_separate_curves():
    charts = drawn(epoch(), epoch(number=2))
    assert list(charts) == ["Loss", "Accuracy (%)", "Learning rate"]
    assert {"training", "training, with weight decay", "held out"} < set(charts["Loss"])
    assert "training" not in drawn(epoch(data_loss=None))["Loss"]
