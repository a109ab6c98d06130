from sat_tf.reproduction.figures.library import FIGURES, find
from tests.reproduction.figures.small import tables


def test_all_figures_that_need_no_imagenet_are_there():
    assert list(FIGURES) == [
        "figure2a",
        "figure_s1",
        "table_s1",
        "figure_s2",
        "figure_s3",
        "equation13",
    ]


def test_tables_have_the_columns_that_are_promised():
    for name, figure in FIGURES.items():
        assert tables()[name].columns == figure.columns


def test_the_whole_command_takes_at_most_five_minutes():
    assert sum(figure.seconds for figure in FIGURES.values()) <= 300


def test_without_names_all_are_found_and_with_names_each_once():
    assert find([]) == (list(FIGURES.values()), [])
    found, problems = find(["table_s1", "figure2a", "table_s1"])
    assert [figure.name for figure in found] == ["table_s1", "figure2a"]
    assert not problems


def test_all_unknown_names_are_told_with_the_nearest():
    _, problems = find(["figure2", "figure2a", "xyz"])
    assert problems == [
        "received 'figure2', expected the name of a figure. Did you mean figure2a?",
        "received 'xyz', expected the name of a figure. Known: equation13, figure2a, figure_s1, "
        "figure_s2, figure_s3, table_s1.",
    ]
