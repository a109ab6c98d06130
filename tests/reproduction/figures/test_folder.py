import dataclasses
import os

import pytest

from sat_tf.messages import RunError
from sat_tf.reproduction.figures.figure import read_numbers, write_figure, write_text
from sat_tf.reproduction.figures.library import FIGURES
from tests.reproduction.figures.small import tables

FIGURE = FIGURES["figure_s1"]


@pytest.mark.thorough
def test_a_figure_is_three_files_and_the_same_each_time(tmp_path):
    write_figure(tmp_path, FIGURE, tables()["figure_s1"])
    assert sorted(os.listdir(tmp_path)) == ["figure_s1.csv", "figure_s1.png", "figure_s1.svg"]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_figure(tmp_path, FIGURE, tables()["figure_s1"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert read_numbers(tmp_path, FIGURE).columns == FIGURE.columns


def test_a_figure_that_lacks_a_file_is_not_there(tmp_path):
    assert read_numbers(tmp_path, FIGURE) is None
    write_figure(tmp_path, FIGURE, tables()["figure_s1"])
    (tmp_path / "figure_s1.svg").unlink()
    assert read_numbers(tmp_path, FIGURE) is None


def test_a_picture_that_cannot_be_drawn_leaves_nothing(tmp_path):
    def broken(table):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_figure(tmp_path, dataclasses.replace(FIGURE, draw=broken), tables()["figure_s1"])
    assert not os.listdir(tmp_path)


def test_a_disk_that_is_full_leaves_the_older_file(tmp_path, monkeypatch):
    (tmp_path / "figure_s1.png").write_bytes(b"older")

    def no_space(picture, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sat_tf.presentation.palette.save", no_space)
    with pytest.raises(
        RunError, match=r"figure_s1.png: cannot be written \(No space left on device\)"
    ):
        write_figure(tmp_path, FIGURE, tables()["figure_s1"])
    assert os.listdir(tmp_path) == ["figure_s1.png"]
    assert (tmp_path / "figure_s1.png").read_bytes() == b"older"


def test_numbers_that_were_changed_are_an_error_with_the_fix(tmp_path):
    write_figure(tmp_path, FIGURE, tables()["figure_s1"])
    (tmp_path / "figure_s1.csv").write_text("x,y\n1,2\n")
    with pytest.raises(RunError, match="create it again with `sat-tf figures figure_s1 --out"):
        read_numbers(tmp_path, FIGURE)


def test_a_text_that_cannot_be_written_is_an_error_of_the_run(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        write_text(tmp_path / "nowhere" / "index.html", "")
