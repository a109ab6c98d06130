import contextlib
import warnings

import pytest

from sat_tf import output_folder
from sat_tf.training import run_folder
from sat_tf.training.config import config_text, parse_config
from sat_tf.training.loop import runner
from sat_tf.training.run_folder import RunFolder, RunState, expect_same_run

SMALLEST = "{name: small, data: {name: digits}, model: {name: mobilenet_v2}}"


def started(path, *overrides):
    folder = RunFolder(path)
    folder.write_text(output_folder.CONFIG, config_text(parse_config(SMALLEST, overrides)))
    return folder


def test_a_folder_without_a_run_takes_any_configuration(tmp_path):
    expect_same_run(RunFolder(tmp_path / "new"), parse_config(SMALLEST))
    expect_same_run(RunFolder(tmp_path), parse_config(SMALLEST))


def test_the_same_configuration_goes_on_however_it_was_said(tmp_path):
    folder = started(tmp_path)
    expect_same_run(folder, parse_config(SMALLEST, ["stages.float.epochs=150", "seed=0"]))


def test_what_is_done_reads_back_in_order(tmp_path):
    folder = RunFolder(tmp_path)
    state = RunState.read(folder)
    assert state.stages == {}
    of_float, of_quantized = ({"loss": 1.0, "top1": top1, "top5": 0.9} for top1 in (0.5, 0.25))
    state.finish("float", of_float)
    state.finish("quantized", of_quantized)
    assert list(RunState.read(folder).stages.items()) == [
        ("float", of_float),
        ("quantized", of_quantized),
    ]


STAGES = {"float": runner.float_stage, "quantized": runner.quantized_stage}
METRICS = {"loss": 1.0, "top1": 0.5, "top5": 0.9}


def left(folder, name):
    """Puts an empty file into the folder of a run, and those above it."""
    file = folder.path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def test_a_saved_model_of_a_stage_that_is_not_done_is_told(tmp_path):
    folder = RunFolder(tmp_path)
    left(folder, "float.keras")
    with pytest.warns(
        UserWarning, match=r"state\.json: received no file beside float\.keras.*again"
    ):
        RunState.read(folder).expect_whole(STAGES)


@pytest.mark.parametrize(
    ("done", "names"),
    [
        ((), ()),
        ((), ("checkpoints/float/chief",)),  # killed in the first stage
        (("float",), ("float.keras", "checkpoints/quantized/chief")),
        (("float",), ("float.keras", "checkpoints/float/chief")),
        (STAGES, ("float.keras", "quantized.keras")),
    ],
)
def test_what_runs_leave_when_they_are_killed_is_whole(tmp_path, done, names):
    folder = RunFolder(tmp_path)
    if done:
        folder.write_json(run_folder.STATE, {"stages": dict.fromkeys(done, METRICS)})
    for name in names:
        left(folder, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RunState.read(folder).expect_whole(STAGES)


def test_a_run_may_trust_its_model_when_it_goes_on(tmp_path):
    expect_same_run(started(tmp_path), parse_config(SMALLEST, ["training.trust_model=true"]))


def test_the_folder_of_an_earlier_version_goes_on(tmp_path):
    folder = started(tmp_path)
    text = folder.read_text(output_folder.CONFIG)
    former = "  checkpoint_minutes: 10\n  checkpoint_steps: null\n  keep_checkpoints: 2\n"
    assert "\ntraining:\n" in text
    folder.write_text(output_folder.CONFIG, text.replace("\ntraining:\n", f"\ntraining:\n{former}"))
    expect_same_run(folder, parse_config(SMALLEST))


def test_the_seconds_of_all_processes_of_a_run_count(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_json(run_folder.STATE, {"stages": {}, "seconds": 100.0})
    state = RunState.read(folder)
    with contextlib.suppress(KeyError), state.timed():
        raise KeyError
    assert 100.0 <= RunState.read(folder).seconds == pytest.approx(state.seconds_so_far(), abs=5.0)
