import pytest

from sat_tf.reproduction.miniature.groups import jobs
from sat_tf.reproduction.miniature.progress import Training, Work, trainings

FLOAT = Training("a", "float", 1000)
QUANTIZED = Training("b", "quantized", 400)


def test_a_float_model_that_several_rows_start_from_is_one_training():
    found = trainings(jobs(full=False))
    assert sorted((one.stage, one.steps) for one in found.values()) == [
        ("float", 1000),
        ("float", 1000),
        *[("quantized", 400)] * 4,
    ]
    assert all(found[name].name == name for name in found)


def test_stages_in_epochs_are_counted_in_steps():
    changes = ["stages.float={epochs: 2, batch_size: 640, warmup_epochs: 0}"]
    steps = {one.steps for one in trainings(jobs(full=False, changes=changes)).values()}
    # 64000 training images.
    assert 200 in steps


def test_what_follows_the_steps_counts_too():
    assert FLOAT.units_after(500) == 500.0
    assert FLOAT.units_after(2000) == FLOAT.units_after(1000) < FLOAT.units
    # A quantized step is dearer than a float one.
    assert QUANTIZED.units_after(100) > FLOAT.units_after(100)


def test_all_work_is_done_when_all_has_finished():
    work = Work({"a": 1000.0, "b": 500.0})
    assert (work.done, work.total) == (0.0, 1500.0)
    work.advance("a", 400.0)
    assert work.done == 400.0
    work.advance("a", 2000.0)
    assert work.done == 1000.0
    work.finish(["a", "b"])
    assert work.done == work.total
    assert work.seconds_left(100.0) == 0.0


def test_work_done_before_does_not_count():
    work = Work({"b": 500.0})
    work.advance("a", 300.0)
    work.finish(["a"])
    assert work.done == 0.0


def test_the_pace_so_far_gives_the_time_left():
    work = Work({str(number): 100_000.0 for number in range(10)})
    work.finish(map(str, range(5)))
    # Half is done in an hour; the first guess weighs nothing against it.
    assert work.seconds_left(3600.0) == pytest.approx(3600.0, rel=0.01)
    assert 0.0 < Work({"a": 1200.0}).seconds_left(0.0) < 120.0
