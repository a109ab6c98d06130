import copy
import dataclasses
import pathlib
import pickle

import pytest

from sat_tf import messages
from sat_tf.messages import ProblemsError, did_you_mean, no_such
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


def test_every_problem_has_a_line_of_its_own_and_is_in_a_list_whatever_it_says():
    problems = (text for text in ["first.", "second."])
    assert str(ProblemsError("thing", problems)) == "thing: 2 problems\n  - first.\n  - second."
    assert str(ProblemsError("thing", ["only."])) == "thing: 1 problem\n  - only."
    problems = ["first.\n  - of two lines.", "second."]
    error = ProblemsError("thing", problems, "Mend it.")
    assert error.problems == messages.problems_of(messages.RunError(error)) == problems
    assert str(messages.RunError(error)) == str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
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


def test_names_that_are_known_are_listed_once():
    problems = [no_such(f"{name} is not a key", name, ["epochs", "steps"]) for name in "xyz"]
    problems[2] = messages.behind("stages.", problems[2])
    error = ProblemsError("stages", [*problems, "A quoted text. Known: epochs, steps."])
    for same in (error, pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert same.problems[1] == "y is not a key. Known: epochs, steps."
        assert str(same).splitlines()[1:] == [
            "  - x is not a key. Known: epochs, steps.",
            "  - y is not a key.",
            "  - stages.z is not a key.",
            "  - A quoted text. Known: epochs, steps.",
        ]


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


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (messages.ModelError("m", "odd."), "dir/m.keras: model 'm': odd."),
        (messages.RunError(messages.ModelError("m", "odd.")), "dir/m.keras: model 'm': odd."),
        (ValueError("model of a camera: not found"), "model of a camera: not found"),
    ],
)
def test_what_is_said_of_a_model_names_its_file(said, message):
    named = messages.value_errors_as_run_errors(pathlib.Path("dir/m.keras"))
    with pytest.raises(messages.RunError) as raised, named:
        raise said
    assert str(raised.value) == message
