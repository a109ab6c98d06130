import contextlib
import types
import warnings

import pytest

from sat_tf import output_folder
from sat_tf.messages import RunError
from sat_tf.training.config.config import config_text, parse_config
from sat_tf.training.loop import runner
from sat_tf.training.state import run_folder
from sat_tf.training.state.run_folder import RunFolder, RunState, expect_same_run

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


def test_another_configuration_is_refused_with_every_difference(tmp_path):
    folder = started(tmp_path, "policy.weight_bits=3")
    other = parse_config(SMALLEST, ["stages.float.epochs=20", "recipes.label_smoothing={}"])
    with pytest.raises(RunError) as error:
        expect_same_run(folder, other)
    lines = str(error.value).splitlines()
    assert lines[0] == f"run folder {tmp_path}, which holds a run of another config: 4 problems"
    assert "  - policy.weight_bits: 3 in the folder, 4 asked for" in lines
    assert "  - stages.float.epochs: 150 in the folder, 20 asked for" in lines
    # The quantized stage takes over what the float stage says.
    assert "  - stages.quantized.epochs: 150 in the folder, 20 asked for" in lines
    assert any(line.startswith("  - recipes.label_smoothing: None in the") for line in lines)
    assert "--no-resume" in lines[-1]
    assert "choose another folder" in lines[-1]


def test_a_configuration_that_cannot_be_read_is_no_run_to_go_on_with(tmp_path):
    (tmp_path / output_folder.CONFIG).write_text("stages: {float: {epoch: 3}}")
    with pytest.raises(RunError, match=r"Did you mean epochs\?[\s\S]*start over with --no-resume"):
        expect_same_run(RunFolder(tmp_path), parse_config(SMALLEST))


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


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"stages": ["float"]}', '{"stages": {"float": {}}}', '{"stage": {}}']
)
def test_a_damaged_state_is_an_error_that_says_what_to_do(tmp_path, text):
    (tmp_path / run_folder.STATE).write_text(text)
    with pytest.raises(RunError, match=r"state\.json: received a damaged file .* --no-resume"):
        RunState.read(RunFolder(tmp_path))


STAGES = {"float": runner.float_stage, "quantized": runner.quantized_stage}
METRICS = {"loss": 1.0, "top1": 0.5, "top5": 0.9}


def left(folder, name):
    """Puts an empty file into the folder of a run, and those above it."""
    file = folder.path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


@pytest.mark.parametrize(
    ("done", "name", "missing"),
    [
        ((), "checkpoints/quantized/chief", "float"),
        ((), "quantized.keras", "float"),
    ],
)
def test_what_a_later_stage_has_left_needs_the_stages_before_it(tmp_path, done, name, missing):
    folder = RunFolder(tmp_path)
    if done:
        folder.write_json(run_folder.STATE, {"stages": dict.fromkeys(done, METRICS)})
    left(folder, name)
    state = RunState.read(folder)
    received = "a file without the" if done else "no file"
    with pytest.raises(
        RunError,
        match=rf"state\.json: received {received}.*{name.split('/chief')[0]}.*the "
        rf"{missing} stage.*--no-resume",
    ):
        state.expect_whole(STAGES)
    assert folder.file(run_folder.STATE).exists() == bool(done)


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


@pytest.mark.parametrize(
    ("stage", "other"), [("float", "quantized.keras"), ("quantized", "float.keras")]
)
def test_the_model_of_a_stage_that_is_gone_is_named(tmp_path, stage, other):
    folder = RunFolder(tmp_path)
    state = RunState(folder, {stage: METRICS})
    run = types.SimpleNamespace(folder=folder)
    left(folder, other)
    with pytest.raises(
        RunError,
        match=rf"{stage}.keras: received no file, expected the model of the {stage} stage"
        ".*--no-resume",
    ):
        STAGES[stage](run, state, None)


def test_the_model_of_a_stage_that_is_damaged_is_named_with_the_fix(tmp_path):
    folder = RunFolder(tmp_path)
    left(folder, "float.keras")
    config = parse_config(SMALLEST)
    run = types.SimpleNamespace(folder=folder, config=config)
    with pytest.raises(
        RunError, match=r"float.keras: .*damaged one; expected the model of .*--no-resume"
    ):
        runner.float_stage(run, RunState(folder, {"float": METRICS}), None)


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
