"""The file lacks layers that act in training alone."""

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from tests.export.proofs import calibrated, proved
from tests.qat.models.test_identities import OF_IMAGES, OF_TENSORS, PLACES, at, images, model, plain

L = keras.layers

_FACTOR, _OFFSET = (1 / 255.0,), (1 / 127.5, -1.0)


def _quantized(between, rescaling=_FACTOR):
    quantized = sat_tf.quantize_model(model(between, rescaling))
    return sat_tf.calibrate(quantized, images(64), batch_normalization=False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "rescaling"),
    [("rotation", _OFFSET), ("noise", _FACTOR), ("stop_gradient", _FACTOR)],
    ids=["rotation", "noise", "stop_gradient"],
)
def test_the_file_has_the_operators_of_the_model_without_it(name, rescaling, path):
    expected = sat_tf.export_tflite(_quantized(plain, rescaling), path).operators
    # Images end before the pool, and without a gradient at the logits nothing is trained.
    places = PLACES[: -1 if name in OF_TENSORS else -2]
    quantized = _quantized(at({**OF_IMAGES, **OF_TENSORS}[name], *places), rescaling)
    quantized.compile("sgd", "mse")
    quantized.fit(images(), np.zeros((16, 3)), verbose=0)
    report, _ = proved(quantized, path, images(4).astype(np.uint8))
    assert report.operators == expected
    assert not report.warnings


def test_the_plan_says_so_and_plans_all_else_as_without_it():
    with_noise, without = model(at(OF_TENSORS["noise"], *PLACES)), model(plain)
    with_noise.set_weights(without.get_weights())  # clipping levels start by what kernels are
    plan, expected = sat_tf.explain(with_noise), sat_tf.explain(without)
    for row in expected.layers:
        found = plan[row.name]
        for field in ("fate", "weights", "activation", "operators", "export", "fused_into"):
            assert getattr(found, field) == getattr(row, field), (row.name, field)
    row = plan["at_conv"]
    assert (row.operators, row.fused_into) == ((), ("relu",))
    assert "acts in training alone" in row.activation_reason


def test_two_outputs_may_be_one_tensor(path):
    image = keras.Input((6, 6, 3), name="image")
    logits = L.Dense(3, name="classifier")(L.Flatten()(image))
    outputs = [logits, L.Dropout(0.5, name="dropout")(logits)]
    quantized = calibrated(keras.Model(image, outputs), 4, images(64))
    proved(quantized, path, images(4).astype(np.uint8))
