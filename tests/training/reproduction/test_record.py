import concurrent.futures
import multiprocessing

from sat_tf.training.reproduction import add_outcomes, outcome_of, read_outcomes
from tests.training.reproduction.fake import outcome


def test_outcomes_read_back_as_they_were(tmp_path):
    file = tmp_path / "results" / "paper.csv"
    some = [
        outcome(),
        outcome(seed=1, top5=None, tflite_top1=None, codes_differing=None, commit=None),
        outcome(seed=2, changes="stages.float.steps=3; policy.overrides={a: {weight_bits: 8}}"),
    ]
    add_outcomes(file, some)
    assert read_outcomes(file) == some


def test_a_file_that_is_not_there_holds_no_outcomes(tmp_path):
    assert read_outcomes(tmp_path / "paper.csv") == []


def test_the_same_row_data_seed_and_changes_take_the_place_of_the_former(tmp_path):
    file = tmp_path / "paper.csv"
    others = [outcome(seed=1), outcome(data="digits"), outcome(row="a"), outcome(changes="b=1")]
    add_outcomes(file, [outcome(top1=60.0), *others])
    add_outcomes(file, [outcome(top1=70.0)])
    assert read_outcomes(file) == [outcome(top1=70.0), *others]


def test_files_that_do_not_say_how_many_images_a_file_was_measured_on_are_read(tmp_path):
    file = tmp_path / "paper.csv"
    add_outcomes(file, [outcome(seed=1)])
    lines = [line.split(",") for line in file.read_text().splitlines()]
    place = lines[0].index("tflite_images")
    file.write_text("".join(",".join(x[:place] + x[place + 1 :]) + "\n" for x in lines))
    assert read_outcomes(file) == [outcome(seed=1, tflite_images=None)]
    add_outcomes(file, [outcome(seed=2)])
    assert read_outcomes(file) == [outcome(seed=1, tflite_images=None), outcome(seed=2)]


def test_an_outcome_has_the_quantized_model_and_shares_in_percent():
    results = {
        "tflite_top1": 0.625,
        "tflite_images": 64,
        "codes_differing": 0,
        "held_out_images": 80,
        "seconds": 12.345,
    }
    found = outcome_of(
        "row",
        "glyphs",
        ["a=1", "b=2"],
        "run",
        results=results,
        stages={"float": {"top1": 0.9, "top5": 1.0}, "quantized": {"top1": 0.61249, "top5": 0.7}},
        environment={"seed": 4, "commit": "c", "started": "now"},
    )
    assert (found.top1, found.top5, found.tflite_top1) == (61.249, 70.0, 62.5)
    assert (found.images, found.tflite_images) == (80, 64)
    assert (found.changes, found.seed, found.seconds, found.date) == ("a=1; b=2", 4, 12.3, "now")


def test_of_a_run_without_a_quantized_stage_it_has_the_float_model():
    results = {"held_out_images": 1, "seconds": 1}
    results |= dict.fromkeys(("tflite_top1", "tflite_images", "codes_differing"))
    found = outcome_of(
        "row",
        "glyphs",
        [],
        "run",
        results=results,
        stages={"float": {"top1": 0.9}},
        environment={"seed": 0, "commit": None, "started": "now"},
    )
    assert (found.top1, found.top5, found.tflite_top1) == (90.0, None, None)


def _add(path, seed):
    add_outcomes(path, [outcome(seed=seed)])


def test_processes_that_add_at_the_same_time_lose_nothing(tmp_path):
    file = tmp_path / "paper.csv"
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(4, mp_context=context) as pool:
        list(pool.map(_add, [file] * 40, range(40)))
    assert sorted(found.seed for found in read_outcomes(file)) == list(range(40))
