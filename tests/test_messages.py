import copy
import dataclasses
import pickle

import pytest

from sat_tf import messages
from sat_tf.messages import ProblemsError, did_you_mean
from sat_tf.planning.deployment import by_layer
from sat_tf.qat.policy import BitPolicy


@pytest.mark.parametrize(
    ("received", "sentence"),
    [
        ("weigth_bits", "Did you mean weight_bits?"),
        ("activation", "Did you mean activation_bits?"),
        ("q", "Known: activation_bits, rescale, weight_bits."),
        ("", "Known: activation_bits, rescale, weight_bits."),
        (3, "Known: activation_bits, rescale, weight_bits."),  # which is no text
    ],
)
def test_the_nearest_known_name_is_proposed_or_all_of_them(received, sentence):
    assert did_you_mean(received, ["weight_bits", "rescale", "activation_bits"]) == sentence


ATTACK = "conv\x1b]0;owned\x07\r\x9b2J\u202e"


def test_control_characters_and_giants_are_not_in_messages():
    for text in (
        str(messages.RunError(f"{ATTACK}: {'x' * 131_000}")),
        str(ProblemsError(ATTACK, [ATTACK] * 10_000)),
        messages.first_ones([ATTACK] * 9000),
        messages.reason_of(ValueError(f"{ATTACK}{'x' * 131_000}")),
        did_you_mean("x", [f"{ATTACK}{number}" for number in range(9000)]),
    ):
        assert not set(text) & set("\x1b\x07\r\x9b\u202e")
        assert r"conv\x1b]0;owned\x07" in text
        assert len(text) < 25_000
    with pytest.warns(UserWarning, match="conv") as caught:
        messages.warn(ATTACK * 10_000)
    assert "\x1b" not in str(caught[0].message)
    assert len(str(caught[0].message)) < 3000


def test_several_giants_are_shown_in_part_and_what_is_short_and_printable_stays_as_it_is():
    text = str(ProblemsError("run.yaml", ["x" * 5000 + " is no key", "y" * 5000, "set epochs"]))
    assert len(text) < 2000
    assert text.endswith("  - set epochs")
    text = "größe 模型 \U0001f600: received\tone\n  - two"
    assert messages.shown(text) == text
    many = [f"layer {number}: received what is not known, expected it" for number in range(200)]
    assert str(ProblemsError("model", many)).endswith(f"  - {many[-1]}")


def test_an_error_has_its_problems_as_a_list_whatever_they_say():
    problems = ["first.\n  - of two lines.", "second."]
    error = ProblemsError("thing", problems, "Mend it.")
    assert error.problems == messages.problems_of(messages.RunError(error)) == problems
    assert messages.problems_of(OSError("disk full")) == ["disk full"]
    with pytest.raises(messages.RunError) as caught, messages.value_errors_as_run_errors():
        raise error
    assert caught.value.problems == problems


def test_a_message_of_a_layer_knows_its_layer_whatever_is_in_its_name():
    message = messages.LayerMessage("a: b/c", "received d: e.")
    for same in (message, pickle.loads(pickle.dumps(message)), copy.deepcopy(message)):
        assert same == "a: b/c: received d: e."
        assert (same.layer, same.text) == ("a: b/c", "received d: e.")
    assert by_layer([message, message, "a: b/c: f."]) == {"a: b/c": ["received d: e."]}


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
