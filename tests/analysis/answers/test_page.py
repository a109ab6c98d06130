import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from sat_tf.analysis.answers.answers import EXAMPLES, Answers
from sat_tf.analysis.answers.page import answers_section
from sat_tf.top_k import NO_CLASS
from tests.export.certificate.test_certificate_page import outline

HOSTILE = "<script>alert('x')</script>"


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
