import math

import numpy as np
import pytest
import tf_keras as keras

from sat_tf.training.config_sections import StageConfig
from sat_tf.training.learner import WarmupCosine


def reference(step, first, peak, warmup, total):
    if step < warmup:
        return first + (peak - first) * step / warmup
    if step >= total:
        return 0.0
    return peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.05),  # the paper's: from 0.05 to 0.05 · 2048 / 256 in the warm-up
        (1, 0.12),
        (4, 0.33),
        (5, 0.4),  # the peak
        (10, 0.2),  # half way down the cosine
        (15, 0.0),  # the end
        (16, 0.0),  # past it
        (1000, 0.0),
    ],
)
def test_learning_rates_of_a_hand_worked_schedule(step, expected):
    schedule = WarmupCosine(
        first_learning_rate=0.05, peak_learning_rate=0.4, warmup_steps=5, total_steps=15
    )
    assert float(schedule(step)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("first", "peak", "warmup", "total"),
    [
        (0.05, 0.4, 7, 40),
        (0.0, 1.0, 1, 2),
        (0.05, 0.05, 5, 50),
        (0.1, 0.1, 0, 30),
        (0.3, 0.2, 0, 1),
    ],
)
def test_every_step_is_that_of_the_formula_in_double_precision(first, peak, warmup, total):
    schedule = WarmupCosine(
        first_learning_rate=first,
        peak_learning_rate=peak,
        warmup_steps=warmup,
        total_steps=total,
    )
    steps = range(total + 3)
    expected = [reference(step, first, peak, warmup, total) for step in steps]
    # A few roundings of float32 relative to the peak, which is where the numbers come from.
    np.testing.assert_allclose(
        [float(schedule(step)) for step in steps], expected, atol=5e-7 * max(first, peak)
    )


def test_a_stage_counts_its_warm_up_in_steps():
    stage = StageConfig(epochs=10, warmup_epochs=2.5, batch_size=512, base_learning_rate=0.1)
    schedule = WarmupCosine.of_stage(stage, steps_per_epoch=6)
    assert (schedule.warmup_steps, schedule.total_steps) == (15, 60)
    assert float(schedule(0)) == pytest.approx(0.1)
    assert float(schedule(15)) == pytest.approx(0.2)


def test_a_warm_up_that_rounds_to_the_whole_stage_leaves_a_step_to_cool():
    stage = StageConfig(epochs=1, warmup_epochs=0.9, batch_size=256)
    assert WarmupCosine.of_stage(stage, steps_per_epoch=3).warmup_steps == 2
    assert WarmupCosine.of_stage(stage, steps_per_epoch=1).warmup_steps == 0


def test_an_optimizer_with_the_schedule_survives_serialization():
    schedule = WarmupCosine(
        first_learning_rate=0.01, peak_learning_rate=0.2, warmup_steps=3, total_steps=9
    )
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    read = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert read.get_config() == optimizer.get_config()
    assert float(read.learning_rate) == pytest.approx(0.01)
