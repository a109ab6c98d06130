import csv
import itertools
import re
import warnings

import numpy as np
import pytest
import tf_keras as keras
import yaml

import sat_tf
from sat_tf.analysis.allocation import allocation
from sat_tf.analysis.allocation.budget import read_budget
from sat_tf.analysis.allocation.choices import ModelChoices
from sat_tf.analysis.allocation.costs import of_sensitivity, of_table
from sat_tf.analysis.allocation.knapsack import solve
from sat_tf.analysis.allocation.problem import make_problem
from sat_tf.planning.file_size import file_bytes
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.config.config import DEMO, read_config
from tests.analysis.allocation.small_models import family, images_for, joined, residual

L = keras.layers
BITS = {"weight_bits": (2, 4, 8), "activation_bits": (2, 4, 8)}
EVERYWHERE = {"first_last_weight_bits": None}
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
    for limit in [length for length in lengths if length >= lengths[0] + 64]:
        found = sat_tf.allocate(model, None, 4, budget={"bytes": limit}, **options)
        best = min(costs for costs, length in every if length <= limit)
        assert found.proof.bound - 1e-9 <= best <= found.proof.cost + 1e-9
        assert found.totals["bytes"].value <= limit
        # What is within the bytes that the sum may be off by is not worth more than they are.
        lower = min(costs for costs, length in every if length <= limit - 64)
        assert found.proof.cost <= lower + 1e-9
    with pytest.raises(ValueError, match="received limits that no choice of bits keeps"):
        sat_tf.allocate(model, None, 4, budget={"bytes": lengths[0] - 65}, **options)


def test_only_the_limit_that_no_choice_keeps_is_at_fault(model):
    with pytest.raises(ValueError, match="1 problem") as caught:
        by_table(model, budget={"average_weight_bits": 0.5, "average_activation_bits": 8})
    assert "average_weight_bits=0.500: the smallest possible is" in str(caught.value)
    assert "average_activation_bits" not in str(caught.value)


# -- what is chosen ----------------------------------------------------------------------------


def test_no_other_choice_within_the_budget_costs_less(model, found):
    choices = ModelChoices(model, BitPolicy.mobile(), *BITS.values())
    costs = of_table(costs_of(model), choices.layers)
    problem = make_problem(choices, costs, read_budget(SMALL)).knapsack
    best = np.inf
    free = [problem.options(item) for item in range(problem.num_items)]
    for chosen in map(np.array, itertools.product(*free)):
        used = problem.usage[:, chosen].sum(axis=1)
        if np.all(used <= problem.limits) and _is_tied(problem, chosen):
            best = min(best, problem.cost[chosen].sum())
    assert found.proof.cost == pytest.approx(best, rel=1e-9)
    assert found.totals["bytes"].value <= found.totals["bytes"].limit
    assert (found.proof.status, found.proof.gap) == ("optimal", 0.0)


def _is_tied(problem, chosen):
    ties = {}
    for item, option in enumerate(chosen):
        if problem.tie[item] >= 0:
            ties.setdefault(problem.tie[item], set()).add(problem.level[option])
    return all(len(levels) == 1 for levels in ties.values())


def test_the_totals_are_those_of_the_plan_and_of_the_file(model, found):
    plan = sat_tf.explain(model, found.policy)
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


def test_the_rows_are_the_bits_of_the_policy(model, found):
    plan = sat_tf.explain(model, found.policy)
    for row in found.layers:
        planned = plan[row.name]
        assert (row.weight_bits, row.activation_bits) == (
            planned.weights.bits,
            planned.reading_bits,
        )
    assert sum(row.cost for row in found.layers) == pytest.approx(found.proof.cost)


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


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_budget_of_uniform_bits_is_reached(bits, model):
    found = by_table(model, budget={"average_bits": bits}, policy=BitPolicy.mobile(4, **EVERYWHERE))
    assert found.totals["average_weight_bits"].value <= bits
    assert found.totals["average_activation_bits"].value <= bits
    if bits == 8:
        assert {row.weight_bits for row in found.layers} == {8}


@pytest.mark.thorough
def test_a_larger_budget_never_costs_more(model):
    costs = [
        by_table(model, budget={"average_bits": f"{share}%"}).proof.cost
        for share in (40, 60, 80, 100)
    ]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.thorough
def test_sensitivity_of_a_measured_model_is_taken_as_it_is(model):
    images = images_for(model)
    policy = BitPolicy.mobile(2)
    measured = sat_tf.sensitivity(model, images, policy)
    one = sat_tf.allocate(model, policy=policy, cost=measured, budget={"average_bits": "50%"})
    other = sat_tf.allocate(model, images, policy, budget={"average_bits": "50%"})
    assert one.layers == other.layers
    assert one.proof == other.proof
    at_four = sat_tf.sensitivity(model, images, BitPolicy.mobile(4))
    with pytest.raises(ValueError, match="received no weight_bits=2 among what was measured"):
        sat_tf.allocate(model, cost=at_four, budget={"average_bits": "50%"})


@pytest.mark.thorough
def test_measured_costs_fall_with_bits(model):
    found = sat_tf.allocate(model, images_for(model), budget={"average_bits": "50%"}, num_images=64)
    assert found.cost_kind == "sensitivity"
    measured = sat_tf.sensitivity(model, images_for(model), BitPolicy.mobile(2), num_images=64)
    layers = ModelChoices(model, BitPolicy.mobile(), range(2, 9), range(2, 9)).layers
    for costs, layer in zip(of_sensitivity(measured, layers), layers, strict=True):
        table = np.reshape(costs, (len(layer.weight_bits), len(layer.activation_bits)))
        assert np.all(np.diff(table, axis=0) <= 0.0)
        assert np.all(np.diff(table, axis=1) <= 0.0)
        # Two bits cost a hundred times what eight do, at the least.
        assert table.size == 1 or table[0, 0] > 100 * table[-1, -1] > 0.0


# -- what the policy is good for ---------------------------------------------------------------


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
    found = by_table(
        model,
        policy=policy,
        pack=pack,
        budget={"average_bits": "50%", "bytes": (room.fewest + room.most) / 2},
    )
    report, certificate = _trains_and_exports(model, found, tmp_path / "model.tflite")
    assert report.bytes == found.totals["bytes"].value <= found.totals["bytes"].limit
    assert certificate.codes_differing == 0


@pytest.mark.parametrize("pack", ["int2", pytest.param("int4", marks=pytest.mark.thorough)])
def test_a_budget_within_which_nothing_is_packed_is_refused_as_the_export_does(pack, model):
    with pytest.raises(ValueError, match=rf"pack='{pack}': .* lower a limit, .* pack='auto'"):
        by_table(model, pack=pack, budget={"average_bits": "100%"})
    found = by_table(model, pack=pack, budget={"average_weight_bits": 4})
    assert found.totals["bytes"].value == file_bytes(model, found.policy, pack=pack)


@pytest.mark.parametrize("pack", ["int2", "int4"])
def test_bits_of_which_none_are_packed_are_refused_before_anything_is_measured(
    pack, model, monkeypatch
):
    monkeypatch.setattr(allocation, "of_table", None)
    with pytest.raises(ValueError, match="received no kernel that fits into 4 bits"):
        by_table(model, pack=pack, weight_bits=(6, 7, 8), budget={"average_bits": "50%"})


@pytest.mark.parametrize("pack", ["int2", "int4"])
def test_a_packing_of_a_model_without_a_file_is_refused(pack):
    image = keras.Input((None, None, 3), name="image")
    tensor = L.ReLU(name="relu")(L.Conv2D(4, 3, name="stem")(image))
    tensor = L.GlobalAveragePooling2D(name="pool")(L.Conv2D(4, 1, name="one")(tensor))
    model = keras.Model(image, L.Dense(2, name="head")(tensor), name="open")
    given = {"activation_bits": (8,), "budget": {"average_weight_bits": 6}}
    with pytest.raises(ValueError, match=rf"pack='{pack}': received a model without a file"):
        by_table(model, **{**given, "pack": pack})


def test_the_policy_is_read_back_from_its_file(model, found, tmp_path):
    found.write_policy(tmp_path / "policy.yaml")
    text = (tmp_path / "policy.yaml").read_text(encoding="utf-8")
    assert BitPolicy(**yaml.safe_load(text)) == found.policy
    assert read_config(DEMO, [f"policy={text}"]).policy == found.policy


def test_what_a_policy_states_beside_its_bits_is_written(model, tmp_path):
    policy = BitPolicy.mobile(4, input_range=(0, 255), weight_range="layer")
    found = by_table(model, policy=policy, budget={"average_bits": "50%"})
    read = BitPolicy(**yaml.safe_load(found.policy_yaml()))
    assert read == found.policy
    assert read.states_input_range


def test_the_users_own_overrides_stay(model):
    policy = BitPolicy.mobile(4, overrides={"fo*": {"weight_bits": 3}})
    found = by_table(model, policy=policy, budget={"average_activation_bits": "50%"})
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


def test_limits_of_channels_that_leave_out_bits_of_a_choice_are_refused(model):
    policy = BitPolicy.mobile(
        3, weight_quantizer="channel_bits", weight_options={"highest": 4}, **EVERYWHERE
    )
    with pytest.raises(ValueError, match="no channels of 2 to 4 bits have"):
        by_table(model, policy=policy, budget={"average_weight_bits": 3}, weight_bits=(2, 4, 5))


# -- how it is shown ---------------------------------------------------------------------------


def test_the_table_says_bits_totals_and_the_proof(found):
    text = found.table()
    for words in ("residual: bits by table", "file bytes", "proven optimal (gap 0)", "shortcut"):
        assert words in text
    assert str(found) == text


def test_a_notebook_shows_bits_totals_and_the_proof(found):
    assert repr(found).startswith("<Allocation: residual: file bytes ")
    assert repr(found).endswith(", optimal>")
    html = found._repr_html_()
    assert all(f"<td>{layer.name}</td>" in html for layer in found.layers)
    assert "file bytes" in html
    assert "proven optimal" in html


def test_rows_and_csv_say_the_same(found, tmp_path):
    found.write_csv(tmp_path / "layers.csv")
    with (tmp_path / "layers.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["name"] for line in lines] == [row["name"] for row in found.to_rows()]
    assert tuple(lines[0]) == found.COLUMNS == tuple(found.to_rows()[0])
    assert [int(line["weight_bits"]) for line in lines] == [r.weight_bits for r in found.layers]


def test_names_of_earlier_versions_say_what_to_use(model, found):
    with pytest.raises(AttributeError, match=r"no 'curve'; use sat_tf.allocate once for each"):
        found.curve("bytes")
    with pytest.raises(KeyError, match="Did you mean four"):
        found["for"]
    given = {"cost": costs_of(model), "budget": {"average_bits": 4}}
    with pytest.raises(TypeError, match="allocate: 3 problems") as caught:
        sat_tf.allocate(model, latency={}, seconds=1, wieght_bits=(2, 4), **given)
    for words in ("latency: .* use npu=", "seconds: .* use fewer", "Did you mean weight_bits"):
        assert re.search(words, str(caught.value))


# -- what is refused ---------------------------------------------------------------------------


def test_a_budget_that_cannot_be_kept_says_the_least_of_each_limit(model):
    with pytest.raises(ValueError, match="no choice of bits keeps: 2 problems") as caught:
        by_table(model, budget={"bytes": 10, "average_weight_bits": 1})
    least = by_table(model, budget={"average_bits": 8}).totals
    assert f"bytes=10: the smallest possible is {least['bytes'].fewest:,.0f}" in str(caught.value)
    assert f"possible is {least['average_weight_bits'].fewest:.3f}" in str(caught.value)


def test_limits_that_exclude_each_other_are_all_listed(model):
    choices = ModelChoices(model, BitPolicy.mobile(), *BITS.values())
    options = [(layer, own) for layer in choices.layers for own, _ in layer.choices]
    # Few bits are slow.
    milliseconds = [9.0 if (layer.name, own) == ("four", 2) else 1.0 for layer, own in options]
    budget = {"milliseconds": len(choices.layers), "average_weight_bits": 2.5}
    limits = read_budget(budget, npu=True)
    costs = of_table(costs_of(model), choices.layers)
    problem = make_problem(choices, costs, limits, milliseconds)
    assert solve(problem.knapsack) is None
    message = str(problem.unreachable())
    assert "milliseconds=7: the smallest possible is 7, without the others." in message
    assert "average_weight_bits=2.500: the smallest possible is 2" in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"budget": {"byte": 3}}, "Did you mean bytes"),
        ({"budget": {"bytes": 0}}, "expected a number above 0"),
        ({"cost": "hessian"}, "cost='hessian': expected 'sensitivity'"),
        ({"cost": "sensitivity"}, "received no dataset"),
        ({"cost": 3}, "cost=3: expected 'sensitivity'"),
        ({"weight_bits": ()}, r"weight_bits=\(\): expected integers from 1 to 8"),
        ({"weight_bits": (4, 9)}, "expected integers from 1 to 8"),
        ({"activation_bits": "48"}, "expected integers from 1 to 8"),
        ({"num_images": 1}, "num_images: received 1"),
        ({"policy": 9}, r"policy=9: expected .* bits from 1 to 8"),
    ],
)
def test_wrong_arguments_are_named(options, expected, model):
    given = {"budget": {"bytes": 1e6}, "cost": costs_of(model), **options}
    with pytest.raises(ValueError, match=expected):
        sat_tf.allocate(model, **given)


def test_a_table_with_problems_lists_all_of_them(model):
    table = costs_of(model)
    table["two"] = {2: float("nan"), 4: -1.0, 8: 0.0}
    table["fuor"] = table.pop("four")
    with pytest.raises(ValueError, match="cost: 4 problems") as caught:
        sat_tf.allocate(model, cost=table, budget={"bytes": 1e6}, **BITS)
    assert "Did you mean four?" in str(caught.value)
    assert "four: received nothing" in str(caught.value)


def test_one_image_is_too_few(model):
    with pytest.raises(ValueError, match="received 1 image, expected 2 or more"):
        sat_tf.allocate(model, images_for(model, 1), budget={"bytes": 1e6})


def test_models_of_open_sizes_have_no_mean_of_activations():
    image = keras.Input((None, None, 3))
    tensor = L.Conv2D(4, 3, activation="relu", name="stem")(image)
    tensor = L.Conv2D(4, 1, activation="relu", name="conv")(tensor)
    model = keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(tensor)))
    with pytest.raises(ValueError, match="average_activation_bits: received a model of open"):
        by_table(model, budget={"average_bits": 4})
    assert by_table(model, budget={"average_weight_bits": 8}).proof.gap == 0.0


def test_a_quantized_model_is_refused(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = sat_tf.quantize_model(model, BitPolicy.mobile(4))
    with pytest.raises(ValueError, match="expected the float model it was made from"):
        sat_tf.allocate(quantized, cost={}, budget={"bytes": 1e6})


def test_a_model_without_layers_to_quantize_is_refused():
    model = keras.Sequential([keras.Input((8, 8, 3)), L.Flatten()])
    with pytest.raises(ValueError, match="there is nothing to quantize"):
        sat_tf.allocate(model, cost={}, budget={"bytes": 1e6})


def test_weights_that_are_not_finite_are_refused(model):
    broken = keras.models.clone_model(model)
    broken.set_weights([np.full_like(weight, np.nan) for weight in model.get_weights()])
    with pytest.raises(ValueError, match="NaN"):
        sat_tf.allocate(broken, images_for(model), budget={"bytes": 1e6})


def test_outputs_that_are_not_finite_are_refused(model):
    broken = keras.models.clone_model(model)
    # Finite themselves, but not what they sum up to.
    broken.set_weights([np.full_like(weight, 1e20) for weight in model.get_weights()])
    with pytest.raises(ValueError, match=r"NaN|infinite"):
        sat_tf.allocate(broken, images_for(model), budget={"bytes": 1e6})


@pytest.mark.parametrize(
    ("policy", "bits", "expected"),
    [
        ({"weight_grid": "rounded"}, {"weight_bits": (1, 4)}, "a single value at 1 bit"),
        ({"requantize_streams": True}, {"activation_bits": (1, 4)}, "expected at least 2"),
        ({"weight_quantizer": "lsq"}, {"weight_bits": (1, 4)}, "lsq"),
    ],
)
def test_bits_that_a_quantizer_does_not_have_are_refused(policy, bits, expected):
    image = keras.Input((8, 8, 3))
    tensor = L.Conv2D(4, 3, name="stem")(image)
    tensor = L.Conv2D(4, 1, name="conv")(tensor)
    model = keras.Model(image, L.Dense(3, name="end")(L.Flatten()(tensor)))
    with pytest.raises(ValueError, match=expected):
        by_table(model, policy=BitPolicy.mobile(4, **policy), budget={"bytes": 1e6}, **bits)


def test_a_file_that_fits_is_not_left_out_because_the_sum_over_layers_is_too_long():
    model = residual()
    policy = BitPolicy.mobile(4, **EVERYWHERE)
    loose = by_table(model, policy=policy, budget={"bytes": "100%"})
    real = loose.totals["bytes"].value
    # The limit is the very length of that file, whatever the sum says.
    found = by_table(model, policy=policy, budget={"bytes": real})
    assert found.proof.cost == loose.proof.cost
    assert found.totals["bytes"].value <= real


def test_float_activations_have_no_bits_to_limit():
    policy = BitPolicy(activation_bits=None)
    with pytest.raises(ValueError, match=r"average_activation_bits: .* activations are float"):
        by_table(residual(), policy=policy, budget={"average_activation_bits": 4})


@pytest.mark.filterwarnings("ignore:calibrate")
def test_images_on_which_bits_change_nothing_are_refused():
    images = np.zeros((8, *residual().input_shape[1:]), np.float32)
    model = residual()
    for layer in model.layers:
        layer.set_weights([np.zeros_like(weight) for weight in layer.get_weights()])
    with pytest.raises(ValueError, match="no number of bits changes anything"):
        sat_tf.allocate(model, images, budget={"average_bits": 4}, num_images=8)
