import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.audit.audited_model import Verdict
from sat_tf.training.audit.kappa import kappa_0
from tests.training.small import small_float_model, small_images, small_quantized_model

L = keras.layers
DATA = small_images()
IMAGES, LABELS = DATA.train_images[:16], DATA.train_labels[:16]


def model_of(*tail, size=8):
    keras.utils.set_random_seed(0)
    image = keras.Input((size, size, 3))
    x = image
    for layer in tail:
        x = layer(x)
    return keras.Model(image, x, name="made")


def rules_of(row):
    return {finding.rule: finding for finding in row.findings}


# -- what is in an audit -----------------------------------------------------------------------


def test_a_plain_model_has_its_kernels_as_effective_weights():
    model = small_float_model()
    audit = sat_tf.audit(model)
    rows = {row.name: row for row in audit.layers}
    assert list(rows) == ["stem", "depthwise", "pointwise", "classifier"]
    for name, attribute in (("stem", "kernel"), ("depthwise", "depthwise_kernel")):
        expected = np.var(getattr(model.get_layer(name), attribute).numpy(), dtype=np.float64)
        assert rows[name].latent_variance == pytest.approx(expected, rel=1e-5)
        assert rows[name].effective_variance == rows[name].latent_variance
        assert rows[name].clamped_variance is None
        assert rows[name].gradient_variance is None
    assert (rows["stem"].fan_in, rows["stem"].fan_out) == (27, 54)
    assert audit.kappa_0 == rows["classifier"].kappa_0
    assert rows["classifier"].pooled_area == 16
    assert (audit.num_images, audit.loss, audit.activations) == (0, None, ())
    assert audit.kappa_0 == pytest.approx(kappa_0(model), rel=1e-5)


def test_a_quantized_model_has_every_stage_of_its_weights():
    model = sat_tf.quantize_model(small_float_model(), BitPolicy.paper(2))
    row = next(row for row in sat_tf.audit(model).layers if row.name == "classifier")
    layer = model.get_layer("quant_classifier")
    latent = layer.layer.kernel.numpy().astype(np.float64)
    clamped = np.tanh(latent) / np.abs(np.tanh(latent)).max()
    assert row.latent_variance == pytest.approx(latent.var(), rel=1e-4)
    assert row.clamped_variance == pytest.approx(clamped.var(), rel=1e-4)
    effective = layer.effective_kernel().numpy()
    assert row.effective_variance == pytest.approx(effective.var(), rel=1e-4)
    assert row.weight_codes_used == len(np.unique(effective))
    assert (row.weight_bits, row.rescale) == (8, "constant")


def test_with_images_there_are_gradients_and_activations():
    audit = sat_tf.audit(small_quantized_model(), (IMAGES, LABELS))
    assert audit.kappa_0 == pytest.approx(kappa_0(small_quantized_model()), rel=1e-5)
    assert audit.num_images == 16
    assert all(row.gradient_variance > 0 for row in audit.layers)
    assert all(row.kappa > 0 for row in audit.layers[:-1])
    for row in audit.activations:
        assert 0 <= row.clipped <= 1
        assert 1 <= row.codes_used <= row.codes <= 256
        assert row.level_gradient is not None


@pytest.mark.thorough
def test_a_tfmot_model_of_another_scheme_is_seen_as_it_computes():
    import tensorflow_model_optimization as tfmot

    model = model_of(
        L.Conv2D(4, 3, name="conv"),
        L.BatchNormalization(),
        L.ReLU(),
        L.GlobalAveragePooling2D(),
        L.Dense(3, name="logits"),
    )
    wrapped = tfmot.quantization.keras.quantize_model(model)
    # Its untrained quantizers clip at 6.
    rows = {row.name: row for row in sat_tf.audit(wrapped, (IMAGES / 50.0, LABELS)).layers}
    kernel = model.get_layer("conv").kernel.numpy()
    assert rows["conv"].normalization == "BatchNormalization"
    assert rows["conv"].latent_variance == pytest.approx(np.var(kernel), rel=1e-4)
    # 8 bits a channel.
    assert rows["conv"].effective_variance == pytest.approx(np.var(kernel), rel=1e-2)
    assert rows["conv"].effective_variance != rows["conv"].latent_variance
    shares = keras.Model(model.input, L.Dense(3, activation="softmax")(model.output))
    with pytest.raises(ValueError, match="a softmax inside"):
        sat_tf.audit(tfmot.quantization.keras.quantize_model(shares), (IMAGES, LABELS))


# -- the verdicts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deviation", "verdict"), [(0.5, Verdict.OK), (1.0, Verdict.WATCH), (3.0, Verdict.BROKEN)]
)
def test_rule_1_is_about_the_size_of_the_classifier(deviation, verdict):
    model = model_of(L.GlobalAveragePooling2D(), L.Dense(100, name="logits"), size=4)
    kernel = np.where(np.arange(300).reshape(3, 100) % 2, deviation, -deviation)
    model.get_layer("logits").set_weights([kernel, np.zeros(100)])
    audit = sat_tf.audit(model)
    assert audit.kappa_0 == pytest.approx(3 * deviation**2 / 16, rel=1e-5)
    assert audit.verdict is verdict
    if verdict is Verdict.BROKEN:
        assert "saturating" in rules_of(audit.layers[0])["rule I"].reason


def test_clamped_weights_break_rules_that_rescaling_keeps():
    tail = (
        lambda: L.Conv2D(32, 3, padding="same", activation="relu", name="bare"),
        lambda: L.Conv2D(32, 3, padding="same", activation="relu", name="second"),
        lambda: L.GlobalAveragePooling2D(),
        lambda: L.Dense(1000, name="logits"),
    )
    model = model_of(*(make() for make in tail))
    clamped = sat_tf.audit(sat_tf.quantize_model(model, BitPolicy.paper(4, rescale="none")))
    rescaled = sat_tf.audit(sat_tf.quantize_model(model, BitPolicy.paper(4)))
    broken = {row.name: rules_of(row) for row in clamped.layers}
    assert "rule II" in broken["second"]
    assert "rescale" in broken["second"]["rule II"].remedy
    assert clamped.kappa_0 > rescaled.kappa_0
    assert rescaled.verdict is Verdict.OK


def test_weights_without_normalization_behind_are_too_large_or_too_small():
    model = model_of(
        L.Conv2D(8, 3, name="large"),
        L.ReLU(),
        L.Conv2D(8, 3, name="small"),
        L.Flatten(),
        L.Dense(2),
    )
    for name, factor in (("large", 100.0), ("small", 0.01)):
        kernel = model.get_layer(name).kernel
        kernel.assign(kernel * factor)
    rows = {row.name: rules_of(row) for row in sat_tf.audit(model).layers}
    assert "too large" in rows["large"]["rule II"].reason
    assert "too small" in rows["small"]["rule II"].reason


def test_a_scale_that_hides_a_layer_breaks_the_measured_rule():
    x = image = keras.Input((8, 8, 3))
    x = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", name="first")(x))
    branch = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", name="hidden")(x))
    branch = L.ReLU()(branch) * 1e-6
    x = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", name="next")(L.Add()([x, branch])))
    model = keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(x)))
    row = next(row for row in sat_tf.audit(model, (IMAGES, LABELS)).layers if row.name == "hidden")
    assert row.kappa < 1e-9
    assert rules_of(row)["rule II"].verdict is Verdict.BROKEN


def test_a_layer_without_gradient_is_named():
    model = model_of(L.Conv2D(4, 3, name="dead"), L.ReLU(), L.Flatten(), L.Dense(3, name="logits"))
    model.get_layer("dead").set_weights([np.full((3, 3, 3, 4), -1.0), np.zeros(4)])
    rows = {row.name: row for row in sat_tf.audit(model, (IMAGES, LABELS)).layers}
    assert "gradient" in rules_of(rows["dead"])


def test_clipping_levels_that_are_too_low_or_too_high_are_named():
    model = sat_tf.requantize(small_quantized_model(), BitPolicy.paper(3))
    for name, level in (("stem_relu", 1e-3), ("depthwise_relu", 1e3)):
        layer = model.get_layer(f"quant_{name}")
        layer.output_variables["clipping_level"].assign(level)
    rows = {row.name: rules_of(row) for row in sat_tf.audit(model, (IMAGES, LABELS)).activations}
    assert "higher clipping level" in rows["stem_relu"]["clipping"].remedy
    assert "lower clipping level" in rows["depthwise_relu"]["activation codes"].remedy


def test_codes_that_do_not_occur_ask_for_more_bits():
    model = sat_tf.quantize_model(small_float_model(), BitPolicy.paper(4))
    kernel = model.get_layer("quant_pointwise").layer.kernel
    values = np.full(kernel.shape, 1e-3)
    values[..., 0, 0] = 5.0
    kernel.assign(values)
    row = next(row for row in sat_tf.audit(model).layers if row.name == "pointwise")
    assert "more weight bits" in rules_of(row)["weight codes"].remedy


def test_weights_that_are_no_numbers_are_named():
    model = keras.models.clone_model(small_float_model())
    kernel = model.get_layer("pointwise").kernel
    kernel.assign(kernel * np.nan)
    audit = sat_tf.audit(model, (IMAGES, LABELS))
    row = next(row for row in audit.layers if row.name == "pointwise")
    assert rules_of(row)["numbers"].verdict is Verdict.BROKEN
    assert any("NaN or infinite" in note for note in audit.notes)
    assert audit.loss is None


# -- models and data of all kinds --------------------------------------------------------------


def test_a_model_without_a_classifier_is_audited_without_kappa_0():
    model = model_of(L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU())
    audit = sat_tf.audit(model)
    assert audit.kappa_0 is None
    assert any("No classifier" in note for note in audit.notes)
    with pytest.raises(ValueError, match="expected logits"):
        sat_tf.audit(model, (IMAGES, LABELS))


def test_unknown_layers_with_matrices_are_named():
    class Mystery(L.Layer):
        def build(self, shape):
            self.matrix = self.add_weight("matrix", (shape[-1], 4))

        def call(self, inputs):
            return inputs @ self.matrix

    model = model_of(
        L.Conv2D(4, 3), Mystery(name="mystery"), L.GlobalAveragePooling2D(), L.Dense(3)
    )
    audit = sat_tf.audit(model, (IMAGES, LABELS))
    assert any("mystery (Mystery)" in note for note in audit.notes)
    assert audit.layers[0].kappa is None
    assert "not known: mystery" in audit.layers[0].unknown


def batches():
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: (IMAGES, LABELS),
        lambda: (IMAGES.astype(np.float32), np.eye(3, dtype=np.float32)[LABELS]),
        lambda: [tf.constant(IMAGES), LABELS[:, None]],
        lambda: batches().batch(5),
        lambda: batches(),
        lambda: batches().batch(16).map(lambda x, y: (x, y, tf.ones_like(y))),
        lambda: iter([(IMAGES[:7], LABELS[:7]), (IMAGES[7:], LABELS[7:])]),
        lambda: (np.concatenate([IMAGES[:1], IMAGES]), np.concatenate([[-1], LABELS])),
    ],
)
def test_data_come_in_many_forms(dataset):
    expected = sat_tf.audit(small_float_model(), (IMAGES, LABELS))
    found = sat_tf.audit(small_float_model(), dataset())
    assert (found.num_images, found.loss) == (16, pytest.approx(expected.loss, rel=1e-6))


def test_a_set_of_the_package_gives_its_held_out_images():
    audit = sat_tf.audit(small_float_model(), DATA, num_images=8)
    expected = sat_tf.audit(small_float_model(), (DATA.test_images[:8], DATA.test_labels[:8]))
    assert (audit.num_images, audit.loss) == (8, expected.loss)
    assert not audit.notes
    of_one = sat_tf.audit(small_float_model(), DATA, num_images=1)
    assert any("Measured on fewer than 8 images" in note for note in of_one.notes)


@pytest.mark.parametrize("dataset", [IMAGES, tf.data.Dataset.from_tensors(IMAGES)])
def test_without_labels_there_are_no_gradients(dataset):
    audit = sat_tf.audit(small_quantized_model(), dataset)
    assert audit.layers[0].gradient_variance is None
    assert audit.activations[0].clipped is not None
    assert any("no labels" in note for note in audit.notes)


# -- how it is shown ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audit():
    model = sat_tf.quantize_model(small_float_model(), BitPolicy.mobile(2, rescale="none"))
    return sat_tf.audit(model, (IMAGES, LABELS))


def test_tables_and_notebooks_show_every_layer_and_finding(audit):
    assert repr(audit).startswith(f"<Audit: {audit.model}: broken; ")
    html = audit._repr_html_()
    for row in (*audit.layers, *audit.activations):
        assert row.name in audit.table()
        assert f"<td>{row.name}</td>" in html
    for _, finding in audit.findings():
        assert finding.rule in audit.table()
        assert finding.rule in html


def test_rows_have_the_same_keys_and_plain_values(audit):
    rows = audit.to_rows()
    assert len({tuple(row) for row in rows}) == 1
    assert [row["name"] for row in rows] == [r.name for r in (*audit.layers, *audit.activations)]
    assert all(
        isinstance(value, str | bool | int | float | None) for row in rows for value in row.values()
    )


def test_the_page_is_whole_and_loads_nothing(audit, tmp_path):
    audit.write_page(tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert page.count("<figure>") == page.count("</figure>") == 5
    assert "<script" not in page
    assert "http" not in page
    for row in audit.layers:
        assert row.name in page
