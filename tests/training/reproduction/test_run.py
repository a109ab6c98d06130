import pytest
from rich.console import Console

from sat_tf import output_folder
from sat_tf.messages import RunError
from sat_tf.training import run_folder
from sat_tf.training.loop import runner
from sat_tf.training.paper_rows import entries
from sat_tf.training.reproduction import plan, read_outcomes, run
from sat_tf.training.run_folder import RunFolder
from tests.training.reproduction.fake import FakeRunner

# Two steps a stage, on the 71 digits that a large share of held-out ones leaves.
TWO_STEPS = (
    "data={name: digits, options: {image_size: 8, test_fraction: 0.96}}",
    "stages.float={steps: 2, batch_size: 32, base_learning_rate: 0.4, warmup_epochs: 0}",
    "stages.quantized={steps: 2}",
    "export.verify_images=1",
)
# One that starts from a float model of its own, and one that ends with an ordinary one.
REPRESENTATIVE = (
    "table1/mobilenet_v2/4bits",
    "figure2b/mobilenet_v2/vanilla",
)


@pytest.fixture
def fake(monkeypatch):
    runs = FakeRunner()
    monkeypatch.setattr(runner, "train", runs.train)
    return runs


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """One folder for all, so that no test trains what another one has trained."""
    return tmp_path_factory.mktemp("paper")


def _run(jobs, folder):
    return run(jobs, folder, folder / "results.csv", Console(quiet=True))


def test_rows_are_planned_seed_by_seed_with_the_float_model_they_start_from():
    jobs = plan(["glyphs/4bits/pact_*", "glyphs/float/clamp"], seeds=(0, 1))
    rows = ["glyphs/4bits/pact_sat", "glyphs/4bits/pact_cg", "glyphs/4bits/pact_sat_cg"]
    assert [job.row for job in jobs] == 2 * [*rows, "glyphs/float/clamp"]
    assert [job.config.seed for job in jobs] == [0] * 4 + [1] * 4
    assert [job.data for job in jobs] == ["glyphs"] * 8
    assert jobs[1].float_config.name == jobs[3].config.name
    assert jobs[3].float_config is None


def test_images_of_ones_own_are_called_by_their_folder():
    pytest.importorskip("sat_tf.training.data.folders")
    (job,) = plan(["table1/mobilenet_v1/4bits"], data="folder", data_dir="/data/birds")
    assert job.data == "folder birds"
    assert job.config.data.options == {"image_size": 224, "data_dir": "/data/birds"}


def test_a_link_that_leads_to_itself_is_planned_by_its_name(tmp_path):
    pytest.importorskip("sat_tf.training.data.folders")
    (tmp_path / "loop").symlink_to("loop")
    (job,) = plan(["table1/mobilenet_v1/4bits"], data="folder", data_dir=str(tmp_path / "loop"))
    assert job.data == "folder loop"


def test_a_given_float_model_takes_the_place_of_the_float_run():
    (job,) = plan(["glyphs/4bits/pact"], changes=["training.float_model=mine.keras"])
    assert job.float_config is None
    assert job.config.training.float_model == "mine.keras"


def test_a_row_is_planned_with_the_other_start_that_it_names():
    swapped, own = plan(["glyphs_common_start/4bits/sat_from_clamp", "glyphs/float/clamp"])
    assert swapped.float_config.name == own.config.name
    assert swapped.config.policy.rescale == "constant"


def test_each_float_model_is_trained_once_and_handed_on(fake, tmp_path):
    jobs = plan(["glyphs/4bits/*", "glyphs/float/clamp*"])
    assert _run(jobs, tmp_path)
    starts = [config for config in fake.configs if config.stages.quantized is None]
    assert sorted(config.policy.rescale for config in starts) == ["constant", "none", "stddev"]
    others = [config for config in fake.configs if config.stages.quantized is not None]
    assert len(others) == 4
    for config in others:
        (start,) = (one for one in starts if one.policy.rescale == config.policy.rescale)
        assert config.training.float_model == str(tmp_path / start.name / output_folder.FLOAT_MODEL)
    assert {config.name for config in fake.configs} == {
        path.name for path in tmp_path.iterdir() if path.is_dir()
    }


def test_what_has_finished_is_not_run_again_and_still_recorded(fake, tmp_path):
    assert _run(plan(["table1/mobilenet_v1/4bits"], data="glyphs"), tmp_path)
    assert len(fake.configs) == 2
    assert _run(plan(["table4/*/4bits/pact_sat_cg", "table1/*_v1/4bits"], data="glyphs"), tmp_path)
    assert len(fake.configs) == 2
    found = read_outcomes(tmp_path / "results.csv")
    assert [outcome.row for outcome in found] == [
        "table1/mobilenet_v1/4bits",
        "table4/mobilenet_v1/4bits/pact_sat_cg",
    ]
    assert {outcome.top1 for outcome in found} == {51.0}
    assert {outcome.run for outcome in found} == {fake.configs[1].name}


def test_seeds_and_changes_are_recorded(fake, tmp_path):
    jobs = plan(["glyphs/float/clamp"], seeds=(3, 4), changes=["stages.float.steps=7"])
    assert _run(jobs, tmp_path)
    found = read_outcomes(tmp_path / "results.csv")
    assert [(outcome.seed, outcome.changes) for outcome in found] == [
        (3, "stages.float.steps=7"),
        (4, "stages.float.steps=7"),
    ]
    assert [config.stages.float.steps for config in fake.configs] == [7, 7]


def test_integers_that_differ_are_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "train", FakeRunner(codes_differing=2).train)
    _run(plan(["glyphs/4bits/pact"]), tmp_path)
    assert read_outcomes(tmp_path / "results.csv")[0].codes_differing == 2


def test_a_results_file_of_something_else_stops_before_the_first_run(fake, tmp_path):
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunError, match="choose another one with --results"):
        _run(plan(["glyphs/4bits/pact"]), tmp_path)
    assert fake.configs == []


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=pytest.mark.thorough if row in REPRESENTATIVE else pytest.mark.slow)
        for row in entries()
    ],
)
def test_every_row_trains_for_two_steps(row, run_dir):
    (job,) = plan([row], data="digits", changes=TWO_STEPS)
    assert _run([job], run_dir)
    finished = RunFolder(run_dir / job.config.name)
    stages = finished.read_json(run_folder.STATE)["stages"]
    quantized = entries()[row].row.measures == "quantized"
    assert ("quantized" in stages) == quantized
    assert finished.file(output_folder.TFLITE_MODEL).is_file() == quantized
    found = {outcome.row: outcome for outcome in read_outcomes(run_dir / "results.csv")}
    assert 0 <= found[row].top1 <= 100
    assert found[row].codes_differing == (0 if quantized else None)
