import csv
import logging

import numpy as np
import pytest
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.audit.training_rules import TrainingRules
from tests.training.loop.test_stage import events
from tests.training.small import small_float_model, small_images

DATA = small_images()
SAMPLE = (DATA.train_images[:16], DATA.train_labels[:16])
LOGGER = "sat_tf.training.audit.training_rules"


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(policy=None, **options):
    model = keras.models.clone_model(small_float_model())
    model.set_weights(small_float_model().get_weights())
    if policy is not None:
        model = sat_tf.quantize_model(model, policy)
    model.compile(keras.optimizers.SGD(0.05), LOSS, **options)
    return model


def fit(model, *callbacks, epochs=1):
    """Six steps an epoch."""
    images, settings = DATA.train_images.astype(np.float32), {"shuffle": False, "verbose": 0}
    settings |= {"batch_size": 16, "epochs": epochs, "callbacks": list(callbacks)}
    model.fit(images, DATA.train_labels, **settings)


def read(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.name == LOGGER]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules")
    rules = TrainingRules(SAMPLE, every=3, log_dir=folder / "events", csv=folder / "rules.csv")
    model = compiled(BitPolicy.mobile(2))
    fit(model, rules, epochs=2)
    return model, rules, folder


@pytest.mark.thorough
def test_the_table_has_a_row_for_each_measured_step_layer_and_activation(trained):
    _, rules, folder = trained
    rows = read(folder / "rules.csv")
    count = len(rules.latest.to_rows())
    assert [int(row["step"]) for row in rows] == sorted([0, 3, 6, 9, 12] * count)
    last = {row["name"]: float(row["gradient_variance"] or 0) for row in rows[-count:]}
    for layer in rules.latest.layers:
        assert last[layer.name] == pytest.approx(layer.gradient_variance, rel=1e-5)
    assert {row["row"] for row in rows} == {"layer", "activation"}


def expect_audited(rules, model):
    latest, expected = rules.latest, sat_tf.audit(model, SAMPLE)
    assert latest.kappa_0 == pytest.approx(expected.kappa_0, rel=1e-4)
    for found, layer in zip(latest.layers, expected.layers, strict=True):
        # A graph sums in another order.
        assert found.gradient_variance == pytest.approx(layer.gradient_variance, rel=1e-2)
        assert found.effective_variance == pytest.approx(layer.effective_variance, rel=1e-4)
    codes_used = [[row.codes_used for row in each.activations] for each in (latest, expected)]
    assert codes_used[0] == codes_used[1]


def test_the_numbers_are_those_of_an_audit_and_tensorboard_gets_them_too(trained):
    model, rules, folder = trained
    expect_audited(rules, model)
    values = events(folder / "events")
    of_kappa_0 = {step: value for (tag, step), value in values.items() if tag == "rules/kappa_0"}
    assert set(of_kappa_0) == {0, 3, 6, 9, 12}
    assert of_kappa_0[12] == pytest.approx(rules.latest.kappa_0)
    assert {step for tag, step in values if tag == "flipped/pointwise"} == {3, 6, 9, 12}
    tags = {"kappa/stem", "gradient_variance/stem", "clipped/stem_relu", "moved/stem"}
    assert tags <= {tag for tag, _ in values}


@pytest.mark.thorough
def test_flipped_is_over_one_step_and_moved_over_those_between_measurements():
    model = compiled(BitPolicy.paper(2))
    codes = []

    class Codes(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.on_train_batch_end(0)

        def on_train_batch_end(self, batch, logs=None):
            codes.append(model.get_layer("quant_pointwise").effective_kernel().numpy())

    rules = TrainingRules(SAMPLE, every=3)
    fit(model, Codes(), rules)
    assert rules.flipped["pointwise"] == pytest.approx(np.mean(codes[6] != codes[5]))
    assert rules.moved["pointwise"] == pytest.approx(np.mean(codes[6] != codes[3]))
    assert rules.moved["pointwise"] > 0


@pytest.mark.thorough
def test_training_goes_as_without_the_callback():
    with_rules, without = compiled(BitPolicy.mobile(4)), compiled(BitPolicy.mobile(4))
    fit(with_rules, TrainingRules(SAMPLE, every=2))
    fit(without)
    assert all(map(np.array_equal, with_rules.get_weights(), without.get_weights()))


@pytest.mark.thorough
def test_a_broken_rule_is_warned_of_once_with_layer_rule_and_remedy(caplog):
    model = compiled(BitPolicy.paper(2, rescale="none"))
    with caplog.at_level(logging.WARNING, logger=LOGGER):
        fit(model, TrainingRules(SAMPLE, every=1))
    broken = [words.split(": ")[1] for words in warnings_in(caplog) if " breaks " in words]
    assert len(broken) == len(set(broken)) > 0


def test_a_rule_that_breaks_later_is_warned_of_then(caplog):
    model = compiled()
    kernel = model.get_layer("classifier").kernel
    rules = TrainingRules(SAMPLE, every=1)

    class Breaks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                kernel.assign(kernel * 100.0)

    with caplog.at_level(logging.WARNING, logger=LOGGER):
        fit(model, Breaks(), rules)
    (words,) = [words for words in warnings_in(caplog) if "rule I:" in words]
    assert words.startswith("step 4: classifier breaks rule I: kappa_0 = ")
    assert "Remedy: " in words


@pytest.mark.thorough
def test_several_batches_at_once_are_counted_and_without_labels_there_are_weights_and_activations(
    caplog, monkeypatch
):
    model, measured = compiled(BitPolicy.mobile(4), steps_per_execution=2), []
    rules = TrainingRules(SAMPLE[0], every=3)
    measure = rules._measure
    monkeypatch.setattr(rules, "_measure", lambda: (measured.append(rules._step), measure()))
    with caplog.at_level(logging.WARNING, logger=LOGGER):
        fit(model, rules)
    assert measured == [0, 4, 6]
    assert rules.latest.layers[0].gradient_variance is None
    assert rules.latest.activations[0].clipped is not None
    assert "no labels" in caplog.text


@pytest.mark.thorough
def test_a_table_goes_on_where_training_does(tmp_path):
    path = tmp_path / "rules.csv"
    model = compiled()
    fit(model, TrainingRules(SAMPLE, every=3, csv=path))
    fit(model, TrainingRules(SAMPLE, every=3, csv=path))
    steps = list(dict.fromkeys(int(row["step"]) for row in read(path)))
    assert steps == [0, 3, 6, 9, 12]


def test_a_model_behind_the_fitted_one_can_be_named():
    model = compiled()

    class Learner(keras.Model):
        def call(self, inputs, training=None):
            return model(inputs, training=training)

    learner = Learner()
    learner.compile("sgd", LOSS)
    rules = TrainingRules(SAMPLE, every=3, model=model)
    fit(learner, rules)
    assert rules.latest.model == "small"
    with pytest.raises(ValueError, match="subclassed"):
        fit(learner, TrainingRules(SAMPLE))


@pytest.mark.thorough
def test_models_wrapped_by_tfmot_are_measured_under_a_strategy(replicas):
    quantize = tfmot.quantization.keras
    with replicas.scope():
        start = quantize.quantize_annotate_model(keras.models.clone_model(small_float_model()))
        scheme = sat_tf.SatQuantizeScheme(BitPolicy.mobile(4))
        model = quantize.quantize_apply(start, scheme=scheme)
        model.compile(keras.optimizers.SGD(0.05), LOSS)
    rules = TrainingRules(SAMPLE, every=3)
    fit(model, rules)
    expect_audited(rules, model)
    assert set(rules.moved) == {layer.name for layer in rules.latest.layers}
