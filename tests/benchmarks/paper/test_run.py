import dataclasses
import itertools
import json
import subprocess
import sys

import pytest
from rich.console import Console

from benchmarks.paper import reproduction as paper
from sat_tf import output_folder
from sat_tf.messages import RunError
from sat_tf.training import run_folder
from sat_tf.training.config import config_text, parse_config
from sat_tf.training.config_sections import RecipesConfig
from sat_tf.training.data import DATA_SETS
from sat_tf.training.loop import runner
from sat_tf.training.run_folder import RunFolder
from tests.benchmarks.paper.fake import FakeRunner

# -- configurations --------------------------------------------------------------------------------

DATA = [name for name, data in paper.data_sets().items() if data.data["name"] in DATA_SETS]


def _rows_with_data():
    """Every row with a data set, in turn; and every network, and number of bits, with each set.

    A data set has changes for these two. The fast tests take the first.
    """
    in_turn = [(row, DATA[place % len(DATA)]) for place, row in enumerate(paper.entries())]
    seen = set()
    for place, (row, data) in enumerate([*in_turn, *itertools.product(paper.entries(), DATA)]):
        of, is_in_turn = paper.entries()[row].row, place < len(in_turn)
        pairs = {(of.base, data), (of.set.get("policy.activation_bits"), data)}
        if is_in_turn or not pairs <= seen:
            yield pytest.param(row, data, marks=() if is_in_turn else pytest.mark.thorough)
        seen |= pairs


def _resolve(row, **options):
    return paper.resolve(paper.entries()[row], **{"data": "glyphs", **options})


def _policy(row):
    return _resolve(row).policy


@pytest.mark.filterwarnings("ignore:weight_grid=")  # rows of grids that train badly
@pytest.mark.parametrize(("row", "data"), _rows_with_data())
def test_every_row_is_a_configuration_that_reads_back_as_itself(row, data):
    data_dir = None if paper.data_sets()[data].data_dir == "none" else "images"
    config = _resolve(row, data=data, data_dir=data_dir)
    assert parse_config(config_text(config)) == config
    assert config.data.options.get("data_dir") == data_dir
    measures = paper.entries()[row].row.measures
    assert (config.stages.quantized is None) == (measures == "float")
    start = paper.float_part(config)
    assert parse_config(config_text(start)) == start


@pytest.mark.parametrize(
    ("network", "batch_size", "peak"),
    [
        *((name, 2048, 0.4) for name in ("mobilenet_v1", "mobilenet_v2")),
        *((name, 1024, 0.2) for name in ("preresnet50", "resnet18", "resnet50")),
    ],
)
def test_the_recipe_is_the_papers(network, batch_size, peak):
    # The images are not the point here.
    config = parse_config(paper.base_text(network), ["data={name: digits}"])
    for stage in (config.stages.float, config.stages.quantized):
        assert (stage.epochs, stage.steps, stage.warmup_epochs) == (150, None, 5)
        assert stage.batch_size == batch_size
        assert stage.first_learning_rate == 0.05
        assert stage.peak_learning_rate == pytest.approx(peak)
        assert (stage.momentum, stage.nesterov, stage.weight_decay) == (0.9, True, 4e-5)
    assert config.calibration.num_images == 0
    policy = config.policy
    assert (policy.stream_bits, policy.latent_start) == (None, "as_is")
    assert (policy.initial_clipping_level, policy.initial_classifier_clipping_level) == (8, 10)
    # Rectifiers with a maximum of their own would cap the start of clipping levels.
    mobile = config.model.name.startswith("mobilenet")
    assert config.model.options == ({"rectifier_max": None} if mobile else {})


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ("table1/mobilenet_v1/5bits", (5, 5, 8, "constant", "calibrated")),
        ("table3/preresnet50/3bits_weights", (3, None, 8, "constant", "calibrated")),
        ("table_s2/mobilenet_v1/6bits/uniform", (6, 6, None, "constant", "calibrated")),
        ("table4/mobilenet_v1/4bits/pact", (4, 4, 8, "none", "pact")),
        ("table4/mobilenet_v1/4bits/pact_sat", (4, 4, 8, "constant", "pact")),
        ("table4/mobilenet_v1/4bits/pact_cg", (4, 4, 8, "none", "calibrated")),
        ("table4/mobilenet_v1/4bits/pact_sat_cg", (4, 4, 8, "constant", "calibrated")),
    ],
)
def test_rows_differ_in_bits_rescale_and_gradient(row, fields):
    policy = _policy(row)
    bits = policy.weight_bits, policy.activation_bits, policy.first_last_weight_bits
    assert (*bits, policy.rescale, policy.clipping_gradient) == fields


def test_rescaling_the_classifier_alone_and_ordinary_float_models_leave_other_layers_as_they_are():
    policy = _policy("figure_s5/preresnet50/classifier")
    assert policy.at("classifier").rescale == "constant"
    other = policy.at("block_1_expand_conv")
    assert (other.rescale, other.first_last_weight_bits) == ("none", 8)
    start = paper.float_part(_resolve("figure_s5/preresnet50/classifier")).policy
    assert (start.at("classifier").rescale, start.at("stem_conv").rescale) == ("constant", "none")
    for start in ("vanilla", "clamp"):
        config = _resolve(f"figure2b/mobilenet_v2/{start}")
        assert config.training.start == start.replace("clamp", "clamped")
    assert config.policy.rescale == "none"


@pytest.mark.parametrize(("row", "level"), [("2bits", 2.5), ("4bits", 8.0)])
def test_in_miniature_clipping_levels_start_lower_at_few_bits(row, level):
    config = _resolve(f"glyphs/{row}/pact_sat_cg")
    policy = config.policy
    assert policy.initial_clipping_level == policy.initial_classifier_clipping_level == level
    assert config.calibration.num_images == 0
    calibrated = _resolve(f"glyphs/{row}_calibrated/pact_sat_cg").calibration
    assert (calibrated.num_images, calibrated.clipping_levels) == (512, True)


def test_in_miniature_mobilenet_v2_is_the_small_one_and_is_trained_for_1400_steps():
    config = _resolve("glyphs/4bits/pact")
    assert config.model.name == "mobilenet_v2_small"
    head = {"head": "pool_first", "rectified_inputs": True}
    assert config.model.options == {**head, "rectifier_max": None}
    for stage, steps in ((config.stages.float, 1000), (config.stages.quantized, 400)):
        assert (stage.total_steps(1000), stage.batch_size) == (steps, 64)
        assert stage.peak_learning_rate == pytest.approx(0.3)
        assert stage.warmup_epochs * 1000 == 25
        assert stage.weight_decay == 4e-5
    assert (config.data.options, config.data.shift_pixels) == ({}, 0)


def test_rows_that_ask_for_the_same_training_have_the_same_name_whatever_has_no_influence():
    pact_sat_cg = "table4/mobilenet_v1/4bits/pact_sat_cg"
    same = (
        pact_sat_cg,
        "table1/mobilenet_v1/4bits",
        "table_s2/mobilenet_v1/4bits/first_last_8bits",
    )
    (name,) = {_resolve(row).name for row in same}

    def named(*changes):
        return _resolve(pact_sat_cg, changes=changes).name

    assert named("distribution=none") == named("name=other") == name
    for change in ("stages.float.momentum=0.8", "policy.weight_bits=3", "seed=1"):
        assert named(change) != name
    assert named("training.float_model=a.keras") not in (name, named("seed=1"))


def test_names_say_what_was_trained():
    config = _resolve("glyphs/4bits/pact", seed=3)
    assert config.name.startswith("mobilenet_v2_small_glyphs_w4a4_seed3_")
    assert "_w2afloat_" in _resolve("table2/mobilenet_v1/2bits").name
    assert "_float_none_" in _resolve("glyphs/float/clamp").name
    assert "_vanilla_" in _resolve("glyphs/float/vanilla").name
    # They are those of folders, whatever the data is called.
    data = config.data.model_copy(update={"options": {"builder": "imagenet_resized/64x64:0.1.0"}})
    name = paper.float_part(config.model_copy(update={"data": data})).name
    assert name.startswith("mobilenet_v2_small_imagenet_resized-64x64-0.1.0_float_none_seed3_")


def test_runs_share_the_float_model_of_their_rescale_alone():
    def start(row):
        return paper.float_part(_resolve(row)).name

    for bits in ("4bits", "2bits", "4bits_calibrated"):
        assert start(f"glyphs/{bits}/pact_sat") == start("glyphs/2bits/pact_sat_cg")
        assert start(f"glyphs/{bits}/pact") == start(f"glyphs/{bits}/pact_cg")
        assert start(f"glyphs/{bits}/pact_cg") == _resolve("glyphs/float/clamp").name
    assert start("glyphs/4bits/pact_sat") == _resolve("glyphs/float/clamp_constant").name
    assert start("glyphs/4bits/pact") != start("glyphs/4bits/pact_sat")
    assert start("table3/preresnet50/2bits_weights") == _resolve("table3/preresnet50/float").name


@pytest.mark.parametrize("bits", ["4bits", "2bits"])
def test_a_row_can_start_from_the_float_model_of_another_method_or_from_a_file(bits):
    entry = paper.entries()[f"glyphs_common_start/{bits}/pact_from_sat"]
    start, config = paper.other_start(entry), paper.resolve(entry)
    assert start == _resolve("glyphs/float/clamp_constant")
    assert config.policy == _policy(f"glyphs/{bits}/pact")
    assert config.training.float_model == f"{start.name}/float.keras"
    assert config.name != _resolve(f"glyphs/{bits}/pact").name
    assert paper.plan([entry.id])[0].float_config == start
    changes = ["training.float_model=mine.keras"]
    assert paper.other_start(entry, changes=changes) is None
    assert paper.resolve(entry, changes=changes).training.float_model == "mine.keras"
    assert paper.other_start(paper.entries()[f"glyphs/{bits}/pact"]) is None
    (job,) = paper.plan([f"glyphs/{bits}/pact"], changes=changes)
    assert (job.float_config, job.config.training.float_model) == (None, "mine.keras")


def test_a_float_model_depends_on_its_own_recipe_and_not_on_the_quantized_one():
    def start(*changes):
        return paper.float_part(_resolve("glyphs/4bits/pact", changes=changes)).name

    assert start("stages.quantized.momentum=0.5", "policy.weight_grid=dorefa") == start()
    assert start("stages.quantized=null") == start()
    assert start("stages.float.momentum=0.5") != start()
    assert start("calibration={num_images: 64, final_statistics: true}") != start()


def test_recipes_can_be_cut_down_to_those_of_some_stages():
    recipes = RecipesConfig(distillation={}, oscillation={}, label_smoothing={})
    of_float = paper.in_stages(recipes, ["float"])
    assert (of_float.distillation, of_float.oscillation, of_float.weight_average) == (None,) * 3
    assert of_float.label_smoothing.stages == ["float"]
    assert paper.in_stages(recipes, ["float", "quantized"]) == recipes


@pytest.mark.thorough
def test_resolving_loads_no_tensorflow_and_gives_the_same_digest_in_every_process():
    code = (
        "import sys\n"
        "from benchmarks.paper.reproduction import entries, resolve\n"
        "print(resolve(entries()['glyphs/4bits/pact']).name, 'tensorflow' in sys.modules)"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=120)
    assert output.split() == [_resolve("glyphs/4bits/pact").name, "False"]


# -- runs ------------------------------------------------------------------------------------------

# Two steps a stage, on the 71 digits that a large share of held-out ones leaves.
TWO_STEPS = (
    "data={name: digits, options: {image_size: 8, test_fraction: 0.96}}",
    "stages.float={steps: 2, batch_size: 32, base_learning_rate: 0.4, warmup_epochs: 0}",
    "stages.quantized={steps: 2}",
    "export.verify_images=1",
)
# One that starts from a float model of its own, and one that ends with an ordinary one.
REPRESENTATIVE = ("table1/mobilenet_v2/4bits", "figure2b/mobilenet_v2/vanilla")


@pytest.fixture
def fake(monkeypatch):
    runs = FakeRunner(codes_differing=2)
    monkeypatch.setattr(runner, "train", runs.train)
    return runs


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """One folder for all, so that no test trains what another one has trained."""
    return tmp_path_factory.mktemp("paper")


def _run(jobs, folder):
    return paper.run(jobs, folder, folder / "results.csv", Console(quiet=True))


def test_rows_are_planned_seed_by_seed_with_the_float_model_they_start_from():
    jobs = paper.plan(["glyphs/4bits/pact_*", "glyphs/float/clamp"], seeds=(0, 1))
    rows = ["glyphs/4bits/pact_sat", "glyphs/4bits/pact_cg", "glyphs/4bits/pact_sat_cg"]
    assert [job.row for job in jobs] == 2 * [*rows, "glyphs/float/clamp"]
    assert [job.config.seed for job in jobs] == [0] * 4 + [1] * 4
    assert [job.data for job in jobs] == ["glyphs"] * 8
    assert jobs[1].float_config.name == jobs[3].config.name
    assert jobs[3].float_config is None


def test_images_of_ones_own_are_called_by_their_folder_even_by_a_link_to_itself(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for data_dir, name in (("/data/birds", "folder birds"), (f"{tmp_path}/loop", "folder loop")):
        (job,) = paper.plan(["table1/mobilenet_v1/4bits"], data="folder", data_dir=data_dir)
        assert job.data == name
        assert job.config.data.options == {"image_size": 224, "data_dir": data_dir}


def test_each_float_model_is_trained_once_and_handed_on(fake, tmp_path):
    jobs = paper.plan(["glyphs/4bits/*", "glyphs/float/clamp*"])
    assert _run(jobs, tmp_path)
    starts = [config for config in fake.configs if config.stages.quantized is None]
    assert sorted(config.policy.rescale for config in starts) == ["constant", "none", "stddev"]
    files = {
        start.policy.rescale: tmp_path / start.name / output_folder.FLOAT_MODEL for start in starts
    }
    others = [config for config in fake.configs if config.stages.quantized is not None]
    assert len(others) == 4
    for config in others:
        assert config.training.float_model == str(files[config.policy.rescale])
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert {config.name for config in fake.configs} == folders


def test_what_has_finished_is_not_run_again_and_still_recorded(fake, tmp_path):
    assert _run(paper.plan(["table1/mobilenet_v1/4bits"], data="glyphs"), tmp_path)
    assert len(fake.configs) == 2
    assert _run(
        paper.plan(["table4/*/4bits/pact_sat_cg", "table1/*_v1/4bits"], data="glyphs"), tmp_path
    )
    assert len(fake.configs) == 2
    one, other = paper.read_outcomes(tmp_path / "results.csv")
    assert one.row == "table1/mobilenet_v1/4bits"
    assert other == dataclasses.replace(one, row="table4/mobilenet_v1/4bits/pact_sat_cg")
    assert (one.top1, one.top5, one.tflite_top1) == (51.0, 100.0, 51.0)
    assert (one.images, one.seconds, one.run) == (8000, 1.0, fake.configs[1].name)
    assert one.codes_differing == 2


def test_seeds_and_changes_are_recorded(fake, tmp_path):
    change = "stages.float.steps=7"
    assert _run(paper.plan(["glyphs/float/clamp"], seeds=(3, 4), changes=[change]), tmp_path)
    found = paper.read_outcomes(tmp_path / "results.csv")
    facts = [(one.seed, one.changes, one.top1, one.tflite_top1) for one in found]
    assert facts == [(3, change, 50.0, None), (4, change, 51.0, None)]
    assert [config.stages.float.steps for config in fake.configs] == [7, 7]


def test_a_results_file_of_something_else_stops_before_the_first_run(fake, tmp_path):
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunError, match="choose another one with --results"):
        _run(paper.plan(["glyphs/4bits/pact"]), tmp_path)
    assert fake.configs == []


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=pytest.mark.thorough if row in REPRESENTATIVE else pytest.mark.slow)
        for row in paper.entries()
    ],
)
def test_every_row_trains_for_two_steps(row, run_dir):
    (job,) = paper.plan([row], data="digits", changes=TWO_STEPS)
    assert _run([job], run_dir)
    finished = RunFolder(run_dir / job.config.name)
    stages = json.loads(finished.read_text(run_folder.STATE))["stages"]
    quantized = paper.entries()[row].row.measures == "quantized"
    assert ("quantized" in stages) == quantized
    assert finished.file(output_folder.TFLITE_MODEL).is_file() == quantized
    found = {outcome.row: outcome for outcome in paper.read_outcomes(run_dir / "results.csv")}
    assert 0 <= found[row].top1 <= 100
    assert found[row].codes_differing == (0 if quantized else None)
