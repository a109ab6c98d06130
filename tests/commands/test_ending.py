"""The last lines of `sat-tf quantize`."""

import types

import pytest

from sat_tf.commands.quantize import accuracy, next_step
from sat_tf.presentation.tables import Marked
from sat_tf.report.results import Results

BUILD = "build model.tflite into the app"


def _certificate(*notes):
    return types.SimpleNamespace(float_notes=[Marked(note, "good") for note in notes])


def _results(tflite=0.875, float_top1=0.9375, *, rate=None, images=64):
    return Results(
        tflite_images=images,
        held_out_images=64,
        parameters=9,
        seconds=1.0,
        tflite_top1=tflite,
        quantized_top1=0.5,
        float_top1=float_top1,
        learning_rate=rate,
    )


@pytest.mark.parametrize(
    ("bits", "results", "why_not", "expected"),
    [
        (4, _results(), "", "4 bits without training cost 6.25 points of top-1; --epochs 5 trains"),
        (
            4,
            _results(),
            "a model of (8, 8, 1)",
            "4 bits without training cost 6.25 points of top-1; --epochs refuses a model of "
            "(8, 8, 1), more bits cost less",
        ),
        (
            2,
            _results(rate=1e-3),
            "",
            "2 bits after training cost 6.25 points of top-1; more epochs and more bits cost less, "
            "and sat-tf sensitivity names the layers to blame",
        ),
        (2, _results(float_top1=0.879), "", BUILD),
        (2, _results(float_top1=0.879, rate=1e-3), "", BUILD),
        (8, _results(), "", "8 bits without training cost 6.25 points of top-1; --epochs 5 trains"),
        (8, None, "", BUILD),
        (
            4,
            None,
            "",
            "4 bits without training can cost accuracy; with pictures in folders of the model's "
            "classes, or --labels of an .npy file, it is measured; --epochs 5 trains, also without "
            "labels",
        ),
    ],
)
def test_what_to_do_next_fits_what_was_measured(bits, results, why_not, expected):
    assert next_step(bits, Marked("0 codes differ", "good"), results, why_not) == expected


def test_a_red_file_is_not_to_be_shipped_and_what_it_loses_has_a_fix():
    red, kept, lost = Marked("9 codes differ", "bad"), _results(float_top1=0.875), _results()
    ship = "do not ship it; certificate.html says where it goes wrong"
    assert next_step(8, red, kept, "") == next_step(8, red, None, "") == ship
    assert next_step(4, red, lost, "", is_exact=False) == ship
    assert next_step(4, red, lost, "").endswith("points of top-1; --epochs 5 trains")


def test_accuracy_stands_beside_that_of_the_float_model():
    expected = "87.50 % of 64 held-out pictures right, the float model 93.75 % (-6.25 points)"
    assert accuracy(_certificate(), _results()) == expected
    # That of the model, where the file was measured on fewer.
    assert accuracy(_certificate(), _results(images=32)).startswith("50.00 % of 64")


def test_without_labels_it_is_how_near_the_outputs_are():
    certificate = _certificate("Beside the float model: the same class for 99 %")
    assert accuracy(certificate, None) == "the same class for 99 %"
    assert accuracy(_certificate(), None) == "not measured"
