import itertools
import types
import warnings

import numpy as np
import pytest
import tf_keras as keras
import yaml

import sat_tf
from sat_tf.analysis.allocation.allocation import (
    BitProblem,
    costs_of_table,
    table_of_sensitivity,
)
from sat_tf.analysis.allocation.budget import read_budget
from sat_tf.analysis.allocation.choices import ModelChoices, milliseconds_of
from sat_tf.exact.targets.ethos_u import compile_file
from sat_tf.planning.file_size import file_bytes
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.config import DEMO, read_config
from tests.analysis.allocation.small_models import family, images_for, joined, residual
from tests.analysis.allocation.test_choices import EVERYWHERE, all_choices

L = keras.layers
BITS = {"weight_bits": (2, 4, 8), "activation_bits": (2, 4, 8)}
SMALL = {"average_weight_bits": "60%", "average_activation_bits": "60%"}


def costs_of(model, policy=None):
    """A table in which bits matter, and layers differ."""
    plan = sat_tf.explain(model, policy or BitPolicy())
    names = [row.name for row in plan.layers if row.weights]
    return {
        name: {
            (w, a): (1 + index % 3) * (4.0**-w + 3 * 4.0**-a)
            for w, a in itertools.product(range(1, 9), repeat=2)
        }
        for index, name in enumerate(names)
    }


def by_table(model, policy=None, **options):
    given = {"cost": costs_of(model, policy), "policy": policy, **BITS, **options}
    return sat_tf.allocate(model, **given)


@pytest.fixture(scope="module")
def model():
    return residual()


@pytest.fixture(scope="module")
def found(model):
    return by_table(model, budget={**SMALL, "bytes": 9_600})


# -- the bytes of real files ---------------------------------------------------------------------


def _pointwise():
    keras.utils.set_random_seed(1)
    image = keras.Input((8, 8, 3), name="image")
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, padding="same", use_bias=False)(image)))
    for name in ("one", "two"):
        x = L.BatchNormalization()(L.Conv2D(16, 1, use_bias=False, name=name)(x))
        x = L.ReLU()(x)
    return keras.Model(image, L.Dense(5, name="head")(L.GlobalAveragePooling2D()(x)))


@pytest.mark.thorough
def test_no_choice_whose_file_keeps_a_limit_costs_less_than_the_bound():
    model, bits = _pointwise(), (2, 4, 8)
    costs = np.random.default_rng(2).uniform(size=(2, 3, 3))
    cost = {
        name: {(w, a): costs[i, j, k] for j, w in enumerate(bits) for k, a in enumerate(bits)}
        for i, name in enumerate(("one", "two"))
    }
    # Each choice has a cost, and a file of some length.
    every = []
    for one, two in itertools.product(itertools.product(bits, repeat=2), repeat=2):
        fields = {
            name: {"weight_bits": own, "activation_bits": read}
            for name, (own, read) in (("one", one), ("two", two))
        }
        length = file_bytes(model, BitPolicy.mobile(4, overrides=fields))
        every.append((cost["one"][one] + cost["two"][two], length))
    lengths = sorted({length for _, length in every})
    assert len(lengths) > 5
    options = {"cost": cost, "weight_bits": bits, "activation_bits": bits}
    for limit in lengths:
        found = sat_tf.allocate(model, None, 4, budget={"bytes": limit}, **options)
        best = min(costs for costs, length in every if length <= limit)
        assert found.proof.bound - 1e-9 <= best <= found.proof.cost + 1e-9
        assert found.totals["bytes"].value <= limit
        # What is within the bytes that the sum may be off by is not worth more than they are.
        lower = [costs for costs, length in every if length <= limit - 64]
        assert found.proof.cost <= min(lower, default=np.inf) + 1e-9
    with pytest.raises(ValueError, match="received limits that no choice of bits keeps"):
        sat_tf.allocate(model, None, 4, budget={"bytes": lengths[0] - 1}, **options)


def test_no_other_choice_within_the_budget_costs_less(model, found):
    choices = ModelChoices(model, BitPolicy.mobile(), *BITS.values())
    problem = BitProblem(choices, read_budget(SMALL)).knapsack
    problem.cost[:] = costs_of_table(costs_of(model), choices.layers)
    best = min(problem.cost[chosen].sum() for chosen in all_choices(problem))
    assert found.proof.cost == pytest.approx(best, rel=1e-9)
    assert found.totals["bytes"].value <= found.totals["bytes"].limit
    assert (found.proof.status, found.proof.gap) == ("optimal", 0.0)


def test_rows_and_totals_are_those_of_the_policy_the_plan_and_the_file(model, found):
    read = BitPolicy(**yaml.safe_load(found.policy_yaml()))
    assert (read, read.states_input_range) == (found.policy, False)
    plan = sat_tf.explain(model, found.policy)
    for row in found.layers:
        planned = plan[row.name].weights.bits, plan[row.name].reading_bits
        assert (row.weight_bits, row.activation_bits) == planned
    assert sum(row.cost for row in found.layers) == pytest.approx(found.proof.cost)
    assert found.totals["bytes"].value == file_bytes(model, found.policy)
    for total in found.totals.values():
        assert total.fewest <= total.value <= total.most
        assert total.limit is None or total.value <= total.limit
    weights = [plan[row.name].parameters - row.num_weights for row in found.layers]  # biases
    assert all(0 < biases <= 16 for biases in weights)
    mean = np.average(
        [row.weight_bits for row in found.layers], weights=[row.num_weights for row in found.layers]
    )
    assert found.totals["average_weight_bits"].value == pytest.approx(mean)


@pytest.mark.parametrize("make", [residual, joined])
def test_readers_of_one_grid_have_equal_bits(make):
    model = make()
    # Each by itself would have other bits: the costs of one are a thousand times the other's.
    table = costs_of(model)
    for name in ("shortcut", "down", "right"):
        if name in table:
            table[name] = {bits: 1000 * cost for bits, cost in table[name].items()}
    found = sat_tf.allocate(model, cost=table, budget={"average_activation_bits": "60%"}, **BITS)
    tied = [row for row in found.layers if row.tied]
    assert tied
    for row in tied:
        for other in row.tied.split(", "):
            assert found[other].activation_bits == row.activation_bits
    plan = sat_tf.explain(model, found.policy)
    assert not [row.name for row in plan.insertions if "_to_" in row.name]


def test_a_budget_of_uniform_bits_is_reached_and_a_larger_one_costs_less(model):
    policy, costs = BitPolicy.mobile(4, **EVERYWHERE), []
    for bits in (2, 4, 8):
        found = by_table(model, budget={"average_bits": bits}, policy=policy)
        assert found.totals["average_weight_bits"].value <= bits
        assert found.totals["average_activation_bits"].value <= bits
        costs.append(found.proof.cost)
    assert {row.weight_bits for row in found.layers} == {8}
    assert costs == sorted(costs, reverse=True)


@pytest.mark.thorough
def test_measured_costs_are_taken_as_they_are_and_the_smallest_file_keeps_its_limit(model):
    images = images_for(model)
    policy = BitPolicy.mobile(2)
    measured = sat_tf.sensitivity(model, images, policy)
    one = sat_tf.allocate(model, policy=policy, cost=measured, budget={"average_bits": "50%"})
    other = sat_tf.allocate(model, images, policy, budget={"average_bits": "50%"})
    assert one.layers == other.layers
    assert one.proof == other.proof
    choices = ModelChoices(model, BitPolicy.mobile(4), *BITS.values())
    smallest = file_bytes(model, choices.policy_at(2, 8))
    images = images_for(model, 16)
    found = sat_tf.allocate(model, images, 4, budget={"bytes": smallest}, num_images=16, **BITS)
    assert found.totals["bytes"].value == smallest


@pytest.mark.thorough
def test_measured_costs_fall_with_bits(model):
    found = sat_tf.allocate(model, images_for(model), budget={"average_bits": "50%"}, num_images=64)
    assert found.cost_kind == "sensitivity"
    measured = sat_tf.sensitivity(model, images_for(model), BitPolicy.mobile(2), num_images=64)
    layers = ModelChoices(model, BitPolicy.mobile(), range(2, 9), range(2, 9)).layers
    losses = table_of_sensitivity(measured, layers)
    for layer in layers:
        of_layer = [losses[layer.name][choice] for choice in layer.choices]
        table = np.reshape(of_layer, (len(layer.weight_bits), len(layer.activation_bits)))
        assert np.all(np.diff(table, axis=0) <= 0.0)
        assert np.all(np.diff(table, axis=1) <= 0.0)
        # Two bits cost a hundred times what eight do, at the least.
        assert table.size == 1 or table[0, 0] > 100 * table[-1, -1] > 0.0


def _trains_and_exports(model, found, path):
    images = images_for(model, 64)
    labels = np.arange(len(images)) % model.output_shape[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the weights are random, and the images few
        quantized = sat_tf.calibrate(sat_tf.quantize_model(model, found.policy), images)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    quantized.compile(keras.optimizers.SGD(1e-4), loss)
    history = quantized.fit(images, labels, batch_size=32, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"][0])
    report = sat_tf.export_tflite(quantized, path, pack=found.pack)
    certificate = sat_tf.verify_tflite(quantized, path, images[:8].astype(np.uint8))
    return report, certificate


@pytest.mark.parametrize(
    ("make", "pack"),
    [
        (residual, "auto"),
        pytest.param(joined, "auto", marks=pytest.mark.thorough),
        pytest.param(lambda: family("mobilenet_v2"), "auto", marks=pytest.mark.thorough),
        pytest.param(lambda: family("resnet18"), "auto", marks=pytest.mark.thorough),
        pytest.param(lambda: family("resnet18"), "int4", marks=pytest.mark.thorough),
    ],
)
def test_the_model_trains_and_its_file_has_the_bytes_and_the_codes(make, pack, tmp_path):
    model = make()
    policy = BitPolicy.mobile(4, **EVERYWHERE)
    loose = by_table(model, policy=policy, pack=pack, budget={"average_bits": "50%"})
    room = loose.totals["bytes"]
    budget = {"average_bits": "50%", "bytes": (room.fewest + room.most) / 2}
    found = by_table(model, policy=policy, pack=pack, budget=budget)
    report, certificate = _trains_and_exports(model, found, tmp_path / "model.tflite")
    assert report.bytes == found.totals["bytes"].value <= found.totals["bytes"].limit
    assert certificate.codes_differing == 0


def test_the_policy_is_read_back_from_its_file_with_what_its_user_states(model, tmp_path):
    stated = {"input_range": (0, 255), "weight_range": "layer"}
    policy = BitPolicy.mobile(4, overrides={"fo*": {"weight_bits": 3}}, **stated)
    found = by_table(model, policy=policy, budget={"average_activation_bits": "50%"})
    found.write_policy(tmp_path / "policy.yaml")
    text = (tmp_path / "policy.yaml").read_text(encoding="utf-8")
    read = BitPolicy(**yaml.safe_load(text))
    assert read == found.policy == read_config(DEMO, [f"policy={text}"]).policy
    assert read.states_input_range
    assert found["four"].weight_bits == 3
    assert next(iter(found.policy.overrides)) == "fo*"
    assert found["four"].chosen == "activations"


@pytest.mark.thorough
def test_bits_of_layers_are_means_where_channels_have_their_own(model, tmp_path):
    policy = BitPolicy.mobile(4, weight_quantizer="channel_bits", **EVERYWHERE)
    given = {"budget": {"average_weight_bits": 3}, "num_images": 64}
    found = sat_tf.allocate(model, images_for(model), policy, **given)
    assert found.totals["average_weight_bits"].value <= 3
    quantized = sat_tf.quantize_model(model, found.policy)
    for layer in found.layers:
        bits = quantized.get_layer(f"quant_{layer.name}").kernel_variables["channel_bits"].numpy()
        assert bits.mean() == layer.weight_bits
    report, certificate = _trains_and_exports(model, found, tmp_path / "model.tflite")
    assert report.bytes == found.totals["bytes"].value
    assert certificate.codes_differing == 0


def test_the_table_says_bits_totals_and_the_proof_and_rows_have_the_bits(found):
    text = found.table()
    for words in ("residual: bits by table", "file bytes", "proven optimal (gap 0)", "shortcut"):
        assert words in text
    assert repr(found).startswith("<Allocation: residual: file bytes ")
    assert repr(found).endswith(", optimal>")
    rows = found.to_rows()
    assert all(tuple(row) == found.COLUMNS for row in rows)
    assert [row["weight_bits"] for row in rows] == [layer.weight_bits for layer in found.layers]


def test_limits_that_exclude_each_other_are_all_listed(model):
    choices = ModelChoices(model, BitPolicy.mobile(), *BITS.values())
    options = [(layer, own) for layer in choices.layers for own, _ in layer.choices]
    # Few bits are slow.
    milliseconds = [9.0 if (layer.name, own) == ("four", 2) else 1.0 for layer, own in options]
    budget = {"milliseconds": len(choices.layers), "average_weight_bits": 2.5}
    limits = read_budget(budget, npu=True)
    problem = BitProblem(choices, limits, milliseconds)
    with pytest.raises(ValueError, match="received limits that no choice") as refusal:
        problem.fitting(model)
    message = str(refusal.value)
    assert "milliseconds=7: the smallest possible is 7, without the others." in message
    assert "average_weight_bits=2.500: the smallest possible is 2" in message


@pytest.mark.parametrize("make", [residual, joined])
def test_a_file_that_fits_is_not_left_out_because_the_sum_over_layers_is_too_long(make):
    model = make()
    policy = BitPolicy.mobile(4, **EVERYWHERE)
    loose = by_table(model, policy=policy, budget={"bytes": "100%"})
    real = loose.totals["bytes"].value
    # The limit is the very length of that file, whatever the sum says.
    found = by_table(model, policy=policy, budget={"bytes": real})
    assert found.proof.cost == loose.proof.cost
    assert found.totals["bytes"].value <= real
    # So can the limit be that of the smallest file, below which there is none.
    smallest = file_bytes(model, ModelChoices(model, policy, *BITS.values()).policy_at(2, 8))
    found = by_table(model, policy=policy, budget={"bytes": smallest})
    assert found.totals["bytes"].value == smallest
    least = f"={smallest - 1:,}: the smallest possible is {smallest:,}"
    with pytest.raises(ValueError, match=least):
        by_table(model, policy=policy, budget={"bytes": smallest - 1})


# -- the time on an NPU ----------------------------------------------------------------------------

_FLASH = {
    "configuration": "ethos-u85-256",
    "system_config": "Ethos_U85_SYS_Flash_High",
    "memory_mode": "Shared_Sram",
}
_BITS = {"weight_bits": (2, 8), "activation_bits": (8,)}


@pytest.fixture(scope="module")
def of_npu():
    """Branches into a concatenation, a layer called twice, and a function behind a layer."""
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3), name="image")
    x = L.Conv2D(16, 3, activation="relu", name="stem")(image)
    x = L.Activation("tanh", name="tanh")(L.Conv2D(32, 3, padding="same", name="wide")(x))
    branches = [L.Conv2D(16, 1, activation="relu", name=name)(x) for name in ("one", "two")]
    x = L.Concatenate(name="both")(branches)
    twice = L.Conv2D(32, 3, padding="same", activation="relu", name="twice")
    x = twice(twice(x))
    return keras.Model(image, L.Dense(4, name="head")(L.GlobalAveragePooling2D()(x)), name="small")


def _of_npu(model, policy, npu, **budget):
    layers = [one.name for one in model.layers if isinstance(one, L.Conv2D | L.Dense)]
    cost = {name: {2: 1.0, 8: 0.0} for name in layers}
    return sat_tf.allocate(model, None, policy, cost=cost, npu=npu, budget=budget, **_BITS)


@pytest.mark.thorough
@pytest.mark.parametrize("npu", ["ethos-u55-128", _FLASH], ids=["u55", "u85 with flash"])
def test_the_totals_are_those_of_the_compiled_file(npu, of_npu, tmp_path):
    found = _of_npu(of_npu, BitPolicy.mobile(4), npu, milliseconds="90%")
    assert {row.weight_bits for row in found.layers if row.chosen != "activations"} >= {2, 8}
    quantized = sat_tf.quantize_model(of_npu, found.policy)
    sat_tf.calibrate(quantized, images_for(of_npu))
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    given = {"configuration": npu} if isinstance(npu, str) else npu
    compiled = compile_file(tmp_path / "model.tflite", **given)
    totals = {name: total.value for name, total in found.totals.items()}
    assert totals["milliseconds"] == pytest.approx(compiled.milliseconds, rel=1e-6)
    fewest, most = (getattr(found.totals["milliseconds"], end) for end in ("fewest", "most"))
    assert fewest < totals["milliseconds"] <= 0.9 * most
    assert found.policy.target == ("ethos-u55" if isinstance(npu, str) else "ethos-u85")


def test_what_cannot_be_compiled_is_refused_with_a_sentence(of_npu, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'sat-tf\[ethos\]'"):
        sat_tf.allocate(of_npu, cost={}, npu="ethos-u55-128", budget={"average_bits": 4})
    choices = types.SimpleNamespace(sizes=None, file_problem="its stem is float.")
    with pytest.raises(ValueError, match="npu: there is no file to compile: its stem is float"):
        milliseconds_of(of_npu, choices, (2, 8), {"configuration": "ethos-u55-128"})


def test_operators_on_the_cpu_are_said_to_have_no_time(of_npu):
    policy = BitPolicy.mobile(4, activation_bits=None)
    with pytest.warns(UserWarning, match="npu: received DEQUANTIZE.* left to the CPU"):
        _of_npu(of_npu, policy, "ethos-u55-128", average_weight_bits=8)
