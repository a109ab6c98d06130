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
    return keras.Sequential([keras.Input((size, size, 3)), *tail], name="made")


def rows_of(model, *sample):
    """The layers and activations of an audit by name."""
    audit = sat_tf.audit(model, *sample)
    return {row.name: row for row in (*audit.layers, *audit.activations)}


def rules_of(row):
    return {finding.rule: finding for finding in row.findings}


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
    row = rows_of(model)["classifier"]
    layer = model.get_layer("quant_classifier")
    latent = layer.layer.kernel.numpy().astype(np.float64)
    clamped = np.tanh(latent) / np.abs(np.tanh(latent)).max()
    assert row.latent_variance == pytest.approx(latent.var(), rel=1e-4)
    assert row.clamped_variance == pytest.approx(clamped.var(), rel=1e-4)
    effective = layer.effective_kernel().numpy()
    assert row.effective_variance == pytest.approx(effective.var(), rel=1e-4)
    measured = rows_of(model, (IMAGES, LABELS))["classifier"]
    assert measured.effective_variance == pytest.approx(effective.var(), rel=1e-5)
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

    start = L.Conv2D(4, 3, name="conv"), L.BatchNormalization(), L.ReLU()
    model = model_of(*start, L.GlobalAveragePooling2D(), L.Dense(3, name="logits"))
    wrapped = tfmot.quantization.keras.quantize_model(model)
    # Its untrained quantizers clip at 6.
    row = rows_of(wrapped, (IMAGES / 50.0, LABELS))["conv"]
    variance = np.var(model.get_layer("conv").kernel.numpy())
    assert row.normalization == "BatchNormalization"
    assert row.latent_variance == pytest.approx(variance, rel=1e-4)
    # 8 bits a channel.
    assert row.effective_variance == pytest.approx(variance, rel=1e-2)
    assert row.effective_variance != row.latent_variance
    shares = keras.Model(model.input, L.Dense(3, activation="softmax")(model.output))
    with pytest.raises(ValueError, match="a softmax inside"):
        sat_tf.audit(tfmot.quantization.keras.quantize_model(shares), (IMAGES, LABELS))


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
    start = (L.Conv2D(32, 3, padding="same", activation="relu") for _ in range(2))
    model = model_of(*start, L.GlobalAveragePooling2D(), L.Dense(1000, name="logits"))
    clamped = sat_tf.audit(sat_tf.quantize_model(model, BitPolicy.paper(4, rescale="none")))
    rescaled = sat_tf.audit(sat_tf.quantize_model(model, BitPolicy.paper(4)))
    assert "rescale" in rules_of(clamped.layers[1])["rule II"].remedy
    assert clamped.kappa_0 > rescaled.kappa_0
    assert rescaled.verdict is Verdict.OK


def test_weights_without_normalization_behind_are_too_large_or_too_small():
    convolutions = L.Conv2D(8, 3, name="large"), L.ReLU(), L.Conv2D(8, 3, name="small")
    model = model_of(*convolutions, L.Flatten(), L.Dense(2))
    for name, factor in (("large", 100.0), ("small", 0.01)):
        kernel = model.get_layer(name).kernel
        kernel.assign(kernel * factor)
    rows = rows_of(model)
    assert "too large" in rules_of(rows["large"])["rule II"].reason
    assert "too small" in rules_of(rows["small"])["rule II"].reason


def test_layers_without_a_gradient_and_codes_that_do_not_occur_are_named():
    model = model_of(L.Conv2D(4, 3, name="dead"), L.ReLU(), L.Flatten(), L.Dense(3, name="logits"))
    model.get_layer("dead").set_weights([np.full((3, 3, 3, 4), -1.0), np.zeros(4)])
    assert "gradient" in rules_of(rows_of(model, (IMAGES, LABELS))["dead"])
    model = sat_tf.quantize_model(small_float_model(), BitPolicy.paper(4))
    kernel = model.get_layer("quant_pointwise").layer.kernel
    values = np.full(kernel.shape, 1e-3)
    values[..., 0, 0] = 5.0
    kernel.assign(values)
    assert "more weight bits" in rules_of(rows_of(model)["pointwise"])["weight codes"].remedy


def test_a_scale_that_hides_a_layer_breaks_the_measured_rule():
    x = image = keras.Input((8, 8, 3))
    x = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", name="first")(x))
    branch = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", name="hidden")(x))
    branch = L.ReLU()(branch) * 1e-6
    x = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", name="next")(L.Add()([x, branch])))
    model = keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(x)))
    row = rows_of(model, (IMAGES, LABELS))["hidden"]
    assert row.kappa < 1e-9
    assert rules_of(row)["rule II"].verdict is Verdict.BROKEN


def test_clipping_levels_that_are_too_low_or_too_high_are_named():
    model = sat_tf.requantize(small_quantized_model(), BitPolicy.paper(3))
    for name, level in (("stem_relu", 1e-3), ("depthwise_relu", 1e3)):
        layer = model.get_layer(f"quant_{name}")
        layer.output_variables["clipping_level"].assign(level)
    rows = rows_of(model, (IMAGES, LABELS))
    assert "higher clipping level" in rules_of(rows["stem_relu"])["clipping"].remedy
    assert "lower clipping level" in rules_of(rows["depthwise_relu"])["activation codes"].remedy


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
    audit = sat_tf.audit(model_of(L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU()))
    assert audit.kappa_0 is None
    assert any("No classifier" in note for note in audit.notes)


def test_unknown_layers_with_matrices_are_named():
    class Mystery(L.Layer):
        def build(self, shape):
            self.matrix = self.add_weight("matrix", (shape[-1], 4))

        def call(self, inputs):
            return inputs @ self.matrix

    ends = L.GlobalAveragePooling2D(), L.Dense(3)
    model = model_of(L.Conv2D(4, 3), Mystery(name="mystery"), *ends)
    audit = sat_tf.audit(model, (IMAGES, LABELS))
    assert any("mystery (Mystery)" in note for note in audit.notes)
    assert audit.layers[0].kappa is None
    assert "not known: mystery" in audit.layers[0].unknown


@pytest.mark.parametrize(
    "form",
    [
        lambda batches: (IMAGES, LABELS),
        lambda batches: (IMAGES.astype(np.float32), np.eye(3, dtype=np.float32)[LABELS]),
        lambda batches: [tf.constant(IMAGES), LABELS[:, None]],
        lambda batches: batches.batch(5),
        lambda batches: batches,
        lambda batches: batches.batch(16).map(lambda x, y: (x, y, tf.ones_like(y))),
        lambda batches: iter([(IMAGES[:7], LABELS[:7]), (IMAGES[7:], LABELS[7:])]),
        lambda batches: (np.concatenate([IMAGES[:1], IMAGES]), np.concatenate([[-1], LABELS])),
    ],
)
def test_data_come_in_many_forms(form):
    batches = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))
    expected = sat_tf.audit(small_float_model(), (IMAGES, LABELS))
    found = sat_tf.audit(small_float_model(), form(batches))
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


def test_table_notebook_rows_and_page_show_every_layer_and_finding(tmp_path):
    model = sat_tf.quantize_model(small_float_model(), BitPolicy.mobile(2, rescale="none"))
    audit = sat_tf.audit(model, (IMAGES, LABELS))
    assert repr(audit).startswith(f"<Audit: {audit.model}: broken; ")
    audit.write_page(tmp_path / "audit.html")
    page, table = (tmp_path / "audit.html").read_text(encoding="utf-8"), audit.table()
    names = [row.name for row in (*audit.layers, *audit.activations)]
    assert all(name in table and f"<td>{name}</td>" in audit._repr_html_() for name in names)
    assert all(row.name in page for row in audit.layers)
    for _, finding in audit.findings():
        assert finding.rule in table
        assert finding.rule in audit._repr_html_()
    assert "<script" not in page
    assert "http" not in page
    rows = audit.to_rows()
    assert len({tuple(row) for row in rows}) == 1
    assert [row["name"] for row in rows] == names
    values = [value for row in rows for value in row.values()]
    assert all(isinstance(value, str | bool | int | float | None) for value in values)
