import numpy as np
import pytest

from sat_tf.analysis.answers.answers import (
    Agreement,
    ClassAccuracy,
    Confusion,
    agreement,
    binned,
    class_accuracies,
    confusion,
    example_groups,
    most_changed,
    most_confused,
    spread,
)
from sat_tf.top_k import NO_CLASS, classes_of

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2])
FLOAT = np.array([0, 0, 1, 1, 1, 2, 2, 0])
FILE = np.array([0, 1, 1, 1, 0, 2, NO_CLASS, 2])


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
    assert most_confused(LABELS, FLOAT, FILE, most=5) == [
        Confusion(label=0, answer=1, by_file=2, by_float_model=1, images=3),
        Confusion(label=1, answer=0, by_file=1, by_float_model=0, images=2),
    ]
    assert len(most_confused(LABELS, FLOAT, FILE, most=1)) == 1
    assert most_confused(LABELS, FLOAT, LABELS, most=5) == []


def test_few_classes_have_a_row_each():
    bins = binned(LABELS, FILE, 3, most=50)
    assert bins.counts.tolist() == confusion(LABELS, FILE, 3).tolist()
    assert bins.starts == (0, 1, 2)
    assert list(bins.classes(2)) == [2]


@pytest.mark.parametrize(("num_classes", "most"), [(1000, 50), (51, 50), (7, 3), (1, 50)])
def test_bins_hold_every_answer_and_every_class_once(num_classes, most):
    random = np.random.default_rng(3)
    labels, answers = random.integers(0, num_classes, (2, 400))
    bins = binned(labels, answers, num_classes, most=most)
    rows = len(bins.starts)
    assert rows <= most
    assert bins.counts.sum() == 400
    assert [c for row in range(rows) for c in bins.classes(row)] == list(range(num_classes))
    whole = confusion(labels, answers, num_classes)
    for row in range(rows):
        for column in range(rows):
            part = whole[np.ix_(bins.classes(row), bins.classes(column))]
            assert bins.counts[row, column] == part.sum()


def test_classes_without_images_have_no_accuracy():
    found = class_accuracies(np.array([4, 4]), np.array([4, 0]), np.array([0, 0]))
    assert found == [ClassAccuracy(label=4, images=2, float_right=1, file_right=0)]
    assert found[0].gained == -0.5


def test_the_classes_that_changed_most_come_first_and_unchanged_ones_not_at_all():
    found = most_changed(class_accuracies(LABELS, FLOAT, FILE), most=9)
    assert [(one.label, one.float_right, one.file_right) for one in found] == [(1, 2, 1), (0, 2, 1)]
    assert len(most_changed(class_accuracies(LABELS, FLOAT, FILE), most=1)) == 1


def test_every_image_is_in_one_group():
    groups = example_groups(LABELS, FLOAT, FILE)
    assert sorted(np.concatenate(list(groups.values())).tolist()) == list(range(len(LABELS)))
    assert {name: found.tolist() for name, found in groups.items()} == {
        "both_right": [0, 3, 5],
        "float_only": [1, 4, 6],
        "file_only": [7],
        "both_wrong": [2],
    }
    assert agreement(LABELS, FLOAT, FILE) == Agreement(3, 3, 1, 1, same_answer=4)


def test_one_image_of_a_small_class_weighs_less_than_many_of_a_large_one():
    small = ClassAccuracy(label=0, images=1, float_right=1, file_right=0)
    large = ClassAccuracy(label=1, images=50, float_right=45, file_right=30)
    assert most_changed([small, large], most=2) == [large, small]


@pytest.mark.parametrize("count", [0, 1, 8, 9, 100])
def test_examples_are_distinct_and_spread(count):
    found = spread(np.arange(count), 8)
    assert len(set(found)) == len(found) == min(count, 8)
    assert all(0 <= index < count for index in found)
