import dataclasses

import pytest

from sat_tf import messages
from sat_tf.messages import did_you_mean, list_problems
from sat_tf.qat.policy import BitPolicy


@pytest.mark.parametrize(
    ("received", "sentence"),
    [
        ("weigth_bits", "Did you mean weight_bits?"),
        ("activation", "Did you mean activation_bits?"),
        ("q", "Known: activation_bits, rescale, weight_bits."),
        ("", "Known: activation_bits, rescale, weight_bits."),
    ],
)
def test_the_nearest_known_name_is_proposed_or_all_of_them(received, sentence):
    assert did_you_mean(received, ["weight_bits", "rescale", "activation_bits"]) == sentence


def test_names_that_are_no_text_have_no_nearest():
    assert did_you_mean(3, ["a", "b"]) == "Known: a, b."


def test_every_problem_has_a_line_of_its_own():
    problems = (text for text in ["first.", "second."])
    assert list_problems("thing", problems) == "thing: 2 problems\n  - first.\n  - second."


def test_one_problem_is_not_plural():
    assert list_problems("thing", ["only."]) == "thing: 1 problem\n  - only."


@pytest.mark.parametrize(
    "warned",
    [
        lambda: messages.warn("trains badly"),
        lambda: BitPolicy(weight_grid="modified"),
        lambda: BitPolicy.mobile(4, weight_grid="modified"),
        lambda: dataclasses.replace(BitPolicy(), weight_grid="modified"),
    ],
)
def test_a_warning_is_on_the_line_that_led_to_it(warned):
    with pytest.warns(UserWarning, match="trains badly") as seen:
        warned()
    (warning,) = seen
    assert (warning.filename, warning.lineno) == (__file__, warned.__code__.co_firstlineno)
