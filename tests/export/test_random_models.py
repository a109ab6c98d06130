"""Graphs nobody has thought of, from the whole set of operations: no code differs."""

import pathlib
import tempfile

import pytest
from hypothesis import HealthCheck, given, reject
from hypothesis import settings as hypothesis_settings

import sat_tf
from tests.export import random_models
from tests.export.zoo import images_for

_MANY = 3000
_FEW = 25
# A summand of which every code but 0 is beyond all that the sum can be.
_NO_KERNEL = "times smaller than those of a tensor it adds"
_NOTHING_FITS = "received no kernel that fits into 4 bits"
_SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def _no_code_differs(model, chosen) -> None:
    quantized = random_models.quantized(model, chosen)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        float_head = chosen.float_head and _has_head(quantized)
        try:
            sat_tf.export_tflite(quantized, path, float_head=float_head, pack=chosen.pack)
        except ValueError as refusal:
            if _NO_KERNEL not in str(refusal) and _NOTHING_FITS not in str(refusal):
                raise
            reject()
        certificate = sat_tf.verify_tflite(quantized, path, images_for(quantized, 4))
    xnnpack = certificate.runtimes["xnnpack"]
    assert xnnpack.codes_compared > 0
    assert {t.name: t.codes_differing for t in xnnpack.tensors if t.codes_differing} == {}
    assert xnnpack.outputs_differing == 0


def _has_head(model) -> bool:
    return len(model.output_shape) == 2


def _check(count: int):
    return hypothesis_settings(
        max_examples=count,
        deadline=None,
        derandomize=count == _FEW,
        suppress_health_check=_SLOW_TO_DRAW,
        print_blob=True,
    )


@pytest.mark.thorough
@_check(_FEW)
@given(random_models.float_models(), random_models.settings())
def test_a_few_random_models_are_computed_exactly(model, chosen):
    _no_code_differs(model, chosen)


@pytest.mark.slow
@_check(_MANY)
@given(random_models.float_models(), random_models.settings())
def test_thousands_of_random_models_are_computed_exactly(model, chosen):
    _no_code_differs(model, chosen)
