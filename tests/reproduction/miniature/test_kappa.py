import pytest
import tensorflow as tf

from sat_tf.messages import RunError
from sat_tf.reproduction.miniature.kappa import FILE, note, read, table
from tests.reproduction.paper.fake import outcome


def _record(folder, run, values):
    """The event file of a run, as the trainer writes it; values by step."""
    writer = tf.summary.create_file_writer(str(folder / run / "tensorboard"))
    with writer.as_default():
        for step, value in values.items():
            tf.summary.scalar("train/loss", 1.0, step=step)
            tf.summary.scalar("kappa_0", value, step=step)
    writer.close()


def test_the_first_and_the_last_value_are_noted_once(tmp_path):
    _record(tmp_path, "one", {0: 25.5, 500: 9.0, 1000: 4.0})
    _record(tmp_path, "two", {0: 0.5, 1000: 3.75})
    for run in ("one", "two", "one"):
        note(tmp_path, run)
    assert {name: (row.before, row.after) for name, row in read(tmp_path).items()} == {
        "one": (25.5, 4.0),
        "two": (0.5, 3.75),
    }
    assert (tmp_path / FILE).read_text() == "run,before,after\none,25.5,4\ntwo,0.5,3.75\n"


def test_runs_without_a_record_are_left_out(tmp_path):
    note(tmp_path, "none")
    _record(tmp_path, "begun", {0: 1.0})
    note(tmp_path, "begun")
    assert read(tmp_path) == {}
    assert table([outcome(row="glyphs/float/clamp", run="begun")], tmp_path) == ""


def test_it_stands_beside_the_accuracy(tmp_path):
    _record(tmp_path, "one", {0: 25.5, 1000: 4.0})
    note(tmp_path, "one")
    drawn = table([outcome(row="glyphs/float/clamp", run="one", seed=2, top1=58.25)], tmp_path)
    cells = ["Float models", "clamp", "2", "25.5", "4", "58.2"]
    assert all(f">{cell}</td>" in drawn for cell in cells)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / FILE).write_text("run,before\none,two\n")
    with pytest.raises(RunError, match=FILE):
        read(tmp_path)
