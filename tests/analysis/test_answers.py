import base64
import dataclasses
import io
import itertools
import json
import re

import numpy as np
import pytest
from PIL import Image

from sat_tf.analysis.answers import (
    EXAMPLES,
    Answers,
    ClassAccuracy,
    Confusion,
    answers_section,
    binned,
    confusion,
    most_changed,
    spread,
)
from sat_tf.top_k import NO_CLASS, classes_of
from tests.export.certificate.test_certificate_page import outline

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2])
FLOAT = np.array([0, 0, 1, 1, 1, 2, 2, 0])
FILE = np.array([0, 1, 1, 1, 0, 2, NO_CLASS, 2])
SMALL = Answers.of(None, LABELS, FLOAT, FILE, num_classes=3)
HOSTILE = "<script>alert('x')</script>"


def test_a_row_of_the_confusion_matrix_is_a_class_and_a_column_an_answer():
    assert confusion(LABELS, FILE, 3).tolist() == [[1, 2, 0], [1, 1, 0], [0, 0, 2]]


def test_an_image_without_an_answer_is_in_no_column():
    assert confusion(LABELS, FILE, 3).sum() == len(LABELS) - 1


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_non_finite_outputs_are_no_answer(broken):
    outputs = np.array([[0.0, broken, 1.0], [0.0, 2.0, 1.0]])
    assert classes_of(outputs).tolist() == [NO_CLASS, 1]


def test_integer_outputs_have_answers_and_of_equal_ones_the_first():
    assert classes_of(np.array([[-3, 5, 5]], np.int8)).tolist() == [1]


def test_pairs_are_sorted_by_what_the_file_confuses_and_say_what_the_float_model_does():
    assert SMALL.most_confused(most=5) == [
        Confusion(label=0, answer=1, by_file=2, by_float_model=1, images=3),
        Confusion(label=1, answer=0, by_file=1, by_float_model=0, images=2),
    ]
    assert len(SMALL.most_confused(most=1)) == 1
    assert dataclasses.replace(SMALL, file_answers=LABELS).most_confused(most=5) == []


def test_few_classes_have_a_row_each():
    counts, rows = binned(LABELS, FILE, 3, most=50)
    assert counts.tolist() == confusion(LABELS, FILE, 3).tolist()
    assert list(map(list, rows)) == [[0], [1], [2]]


@pytest.mark.parametrize(("num_classes", "most"), [(1000, 50), (51, 50), (7, 3), (1, 50)])
def test_bins_hold_every_answer_and_every_class_once(num_classes, most):
    random = np.random.default_rng(3)
    labels, answers = random.integers(0, num_classes, (2, 400))
    counts, rows = binned(labels, answers, num_classes, most=most)
    assert len(rows) <= most
    assert counts.sum() == 400
    assert list(itertools.chain(*rows)) == list(range(num_classes))
    whole = confusion(labels, answers, num_classes)
    for row, column in np.ndindex(counts.shape):
        assert counts[row, column] == whole[np.ix_(rows[row], rows[column])].sum()


def test_classes_without_images_have_no_accuracy():
    found = Answers.of(None, [4, 4], [4, 0], [0, 0], num_classes=5).class_accuracies()
    assert found == [ClassAccuracy(label=4, images=2, float_right=1, file_right=0)]
    assert found[0].gained == -0.5


def test_the_classes_that_changed_most_come_first_and_unchanged_ones_not_at_all():
    found = most_changed(SMALL.class_accuracies(), most=9)
    assert [(one.label, one.float_right, one.file_right) for one in found] == [(1, 2, 1), (0, 2, 1)]
    assert len(most_changed(SMALL.class_accuracies(), most=1)) == 1


def test_every_image_is_in_one_group():
    groups = SMALL.groups()
    assert sorted(np.concatenate(list(groups.values())).tolist()) == list(range(len(LABELS)))
    assert {name: found.tolist() for name, found in groups.items()} == {
        "both_right": [0, 3, 5],
        "float_only": [1, 4, 6],
        "file_only": [7],
        "both_wrong": [2],
    }
    page = " ".join(answers_section(SMALL).split())
    assert "Of 8 held-out images 3 are right in the float model and in the file" in page
    assert "3 in the float model only, 1 in the file only, and 1 in neither; 4 have" in page


def test_one_image_of_a_small_class_weighs_less_than_many_of_a_large_one():
    small = ClassAccuracy(label=0, images=1, float_right=1, file_right=0)
    large = ClassAccuracy(label=1, images=50, float_right=45, file_right=30)
    assert most_changed([small, large], most=2) == [large, small]


@pytest.mark.parametrize("count", [0, 1, 8, 9, 100])
def test_examples_are_distinct_and_spread(count):
    found = spread(np.arange(count), 8)
    assert len(set(found)) == len(found) == min(count, 8)
    assert all(0 <= index < count for index in found)


def some(num_classes=4, count=60, *, names=None, channels=3, side=8):
    random = np.random.default_rng(0)
    labels = random.integers(0, num_classes, count)
    float_answers, file_answers = (
        np.where(random.random(count) < 0.7, labels, random.integers(0, num_classes, count))
        for _ in range(2)
    )
    images = random.integers(0, 256, (count, side, side, channels), np.uint8)
    return Answers.of(
        images, labels, float_answers, file_answers, num_classes=num_classes, class_names=names
    )


def test_answers_read_back_as_they_were():
    answers = some(names=["cat", "dog", "cow", "yak"])
    back = Answers.from_dict(json.loads(json.dumps(answers.to_dict())))
    assert back.to_dict() == answers.to_dict()
    assert answers_section(back) == answers_section(answers)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 300])
def test_examples_are_small_pictures_of_their_images(channels, side):
    answers = some(channels=channels, side=side, count=20)
    for example in answers.examples:
        picture = Image.open(io.BytesIO(base64.b64decode(example.picture)))
        assert picture.size == (min(side, 96),) * 2
        assert picture.mode == ("L" if channels == 1 else "RGB")
    assert 0 < len(answers.examples) <= sum(EXAMPLES.values())


def test_an_example_shows_the_answers_of_both_side_by_side():
    images = np.zeros((1, 8, 8, 3), np.uint8)
    answers = Answers.of(images, [2], [2], [1], num_classes=3, class_names=("cat", "dog", "cow"))
    page = answers_section(answers)
    found = re.findall(r"<dt>(\w+)</dt><dd( class=\"\w+\")?>(\w+)</dd>", page)
    assert found == [
        ("is", "", "cow"),
        ("float", ' class="good"', "cow"),
        ("file", ' class="bad"', "dog"),
    ]
    assert "Right in the float model, wrong in the file" in page
    assert "Wrong in both" not in page


def test_a_matrix_of_few_classes_has_names_and_numbers():
    page = answers_section(some(names=["cat", "dog", "cow", "yak"]))
    assert page.count('class="heat"') == 2
    for name in ("cat", "dog", "cow", "yak"):
        assert f">{name}</text>" in page
    assert "are in groups of" not in page
    assert re.search(r"<title>cat taken for cat: \d+ of \d+</title>", page)


def test_many_classes_share_rows():
    page = answers_section(some(num_classes=1000, count=3000))
    assert "The 1000 classes are in groups of 20" in page
    assert "0–19" in page
    assert len(page) < 1_000_000


def test_classes_without_names_are_numbers_and_no_answer_is_said():
    answers = Answers.of(None, [0, 1], [0, 1], [0, NO_CLASS], num_classes=2)
    assert answers.name(1) == "1"
    assert answers.name(NO_CLASS) == "no answer"
    assert "-50.0" not in answers_section(answers)
    assert "-100.0" in answers_section(answers)


def test_equal_answers_leave_nothing_out_but_tables():
    labels = np.arange(5)
    page = answers_section(Answers.of(None, labels, labels, labels, num_classes=5))
    assert "Every class has the same accuracy" in page
    assert "Most confused" not in page
    outline(page)


def test_hostile_names_are_text():
    page = answers_section(some(names=[HOSTILE, "b", "c", "d"]))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for word in ("url(", "@import", "http:", "https:", "<link"):
        assert word not in page


def test_every_bad_argument_is_named_at_once():
    with pytest.raises(ValueError, match="answers") as error:
        Answers.of(
            np.zeros((2, 8, 8, 4), np.uint8),
            [0, 3],
            [0, 1, 1],
            [0.5, 1.0],
            num_classes=3,
            class_names=["a"],
        )
    for name in ("labels", "float_answers", "file_answers", "images", "class_names"):
        assert f"{name}: received" in str(error.value)
    assert "int64 (2,) from 0 to 3" in str(error.value)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"labels": [0]},
        {**some().to_dict(), "examples": [[999, ""]]},
        {**some().to_dict(), "examples": [[0, "no base64!"]]},
        {**some().to_dict(), "labels": ["a"]},
        {**some().to_dict(), "num_classes": 1},
    ],
)
def test_other_values_are_refused(values):
    with pytest.raises(ValueError, match=r"received|base64|invalid literal"):
        Answers.from_dict(values)
