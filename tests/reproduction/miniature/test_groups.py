import collections

import pytest

from sat_tf.messages import RunError
from sat_tf.reproduction.miniature.groups import GROUPS, SHORT, jobs
from sat_tf.reproduction.paper.library import entries

# Full: three seeds of 4 float models, of 8 quantized ones and of 4 from the other start; once 6
# grids, 2 with streams, 9 with the other head and 4 with gradients through the maximum.
FULL = {3: 16, 1: 21}


def test_all_rows_are_in_the_library():
    assert {row for group in GROUPS for row in group.rows} <= set(entries())


def test_the_short_run_is_two_float_models_and_the_ablation_at_2_bits():
    planned = jobs(full=False)
    assert [job.row for job in planned] == list(SHORT)
    assert {job.config.seed for job in planned} == {0}
    names = {job.config.name for job in planned}
    assert {job.float_config.name for job in planned if job.float_config} < names
    assert [job.config.seed for job in jobs(full=False, seeds=(4, 7))] == [4] * 6 + [7] * 6


def test_the_full_run_repeats_what_the_seeds_are_asked_of():
    planned = jobs(full=True)
    count = collections.Counter(job.row for job in planned)
    assert collections.Counter(count.values()) == FULL
    seeds = {row: [job.config.seed for job in planned if job.row == row] for row in count}
    assert seeds["glyphs/2bits/pact"] == seeds["glyphs_common_start/2bits/pact_from_sat"]
    assert seeds["glyphs/2bits/pact"] == [0, 1, 2]
    assert seeds["glyphs_gap_head/float/clamp"] == [0]


def test_other_seeds_take_their_place():
    seeds = {}
    for job in jobs(full=True, seeds=(5, 6)):
        seeds.setdefault(job.row, []).append(job.config.seed)
    assert seeds["glyphs/4bits/pact"] == [5, 6]
    assert seeds["glyphs_grids/4bits/rounded"] == [5]


def test_no_training_is_planned_twice():
    names = [job.config.name for job in jobs(full=True)]
    assert len(set(names)) == len(names)


def test_grids_differ_from_the_papers_in_the_inner_layers_alone():
    by_row = {job.row: job.config.policy for job in jobs(full=True, seeds=(0,))}
    rounded = by_row["glyphs_grids/2bits/rounded"]
    assert (rounded.at("block_1_depthwise").weight_grid, rounded.weight_bits) == ("rounded", 2)
    for layer in ("stem_conv", "classifier"):
        assert rounded.at(layer).weight_grid == "auto"
        assert rounded.at(layer).weight_bits == 8


def test_the_other_head_is_the_same_task_but_for_what_its_name_says():
    by_row = {job.row: job.config for job in jobs(full=True, seeds=(0,))}
    plain, other = (by_row[f"{group}/float/clamp"] for group in ("glyphs", "glyphs_gap_head"))
    assert other.model.options == {**plain.model.options, "head": "gap"}
    rates = [config.stages.float.peak_learning_rate for config in (plain, other)]
    assert rates == pytest.approx([0.3, 0.1])
    assert (plain.policy, plain.data) == (other.policy, other.data)
    through = by_row["glyphs_gap_head/float_through_max/clamp"].policy
    assert (through.detach_max, other.policy.detach_max) == (False, True)


def test_changes_hold_for_all_rows():
    for job in jobs(full=True, changes=["stages.float.steps=7"]):
        assert job.config.stages.float.steps == 7
        assert job.changes == ("stages.float.steps=7",)


def test_changes_that_do_not_fit_are_errors():
    with pytest.raises(RunError, match=r"stages\.float\.step is not a key\. Did you mean steps"):
        jobs(full=False, changes=["stages.float.step=7"])
