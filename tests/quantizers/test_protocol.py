import keras as keras3  # noqa: TID251 -- both Kerases hold the same quantizers
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.tensor_ops import namespace
from sat_tf.keras3.quantized_layer import QuantizedLayer
from sat_tf.qat.configs import make_variables
from sat_tf.quantizers.methods.channel_bits import ChannelBitsQuantizer
from sat_tf.quantizers.methods.lq_nets import LqNetsQuantizer
from sat_tf.quantizers.observers import ImageQuantizer, InputQuantizer, RangeObserver
from sat_tf.quantizers.pact import OffsetQuantizer
from sat_tf.quantizers.protocol import (
    ActivationQuantizer,
    PixelQuantizer,
    WeightQuantizer,
    WeightRequest,
)
from sat_tf.quantizers.quantizer_table import QUANTIZERS, make_weight_quantizer
from sat_tf.quantizers.scaled import LevelsOfWeights
from tests.keras3.processes import run_on
from tests.quantizers.held import SHAPE, started
from tests.quantizers.rows import computed, every_row, others, rows


def _activations(bits):
    """Quantizers of activations, and variables of theirs; some offsets have learnt."""
    for row in rows(bits):
        quantizer = row.quantizer()
        if isinstance(quantizer, ActivationQuantizer):
            yield quantizer, row.variables
            if "offset" in row.variables:
                for offset in (-1.0, 0.1, 5.0):
                    yield quantizer, {**row.variables, "offset": np.float32(offset)}


@pytest.mark.parametrize("bits", range(1, 9))
def test_a_quantizer_makes_all_of_its_codes_and_no_others(bits):
    values = tf.constant(np.linspace(-9.0, 9.0, 40_001, dtype=np.float32))
    for quantizer, start in _activations(bits):
        variables = {name: tf.Variable(value) for name, value in start.items()}
        found = quantizer.code_range(variables)
        quantized = quantizer(values, False, variables).numpy()
        codes = np.float32(np.arange(int(found.intervals) + 1)) + found.lowest.numpy()
        np.testing.assert_array_equal(np.unique(quantized), np.unique(codes * found.scale.numpy()))
        assert found.ends == (codes[0], codes[-1])
        assert codes[0] <= 0 <= codes[-1]  # padding has a code
        is_symmetric = quantizer.is_symmetric and not start.get("skew")
        assert is_symmetric == (codes[0] == -codes[-1])
        assert found.zero_point == (0 if is_symmetric else 127 - codes[-1])
        if start.get("skew", 0.0) >= 0.0:
            assert quantizer.highest_value(variables) == pytest.approx(quantized.max(), rel=1e-6)


def test_offset_codes_are_those_counted_by_hand():
    # (6 + 1) / 7 = 1 a code, and round(1 / 1) codes below zero.
    quantizer = OffsetQuantizer(num_bits=3, lowest=-1.0)
    found = quantizer.code_range({"clipping_level": tf.constant(6.0)})
    assert (float(found.scale), float(found.lowest), found.intervals) == (1.0, -1.0, 7)


def test_what_does_not_round_says_what_it_is_for():
    image, observer, codes = ImageQuantizer(), RangeObserver(), InputQuantizer(input_type="int8")
    assert not any(isinstance(one, ActivationQuantizer) for one in (image, observer, codes))
    assert [one.input_type for one in (image, observer, codes)] == ["uint8", None, "int8"]
    assert [one.observes_range for one in (image, observer, codes)] == [False, True, True]
    assert isinstance(image, PixelQuantizer)
    assert all(one.input_type is None and not one.observes_range for one, _ in _activations(4))


@pytest.mark.parametrize("bits", range(1, 9))
def test_effective_weights_are_codes_times_scales_and_units_count_the_codes(bits):
    for row in rows(bits):
        quantizer = row.quantizer()
        if not isinstance(quantizer, WeightQuantizer) or quantizer.num_bits is None:
            continue
        latent = tf.constant(row.inputs)
        variables = {name: tf.Variable(value) for name, value in row.variables.items()}
        if isinstance(quantizer, ChannelBitsQuantizer):  # its levels are those of its bits
            variables["channel_bits"].assign(quantizer.first_levels(latent))
        found = quantizer.integer_weights(latent, variables)
        assert found.codes.dtype == tf.int32
        assert found.scales.dtype == tf.float64
        codes = found.codes.numpy()
        effective = quantizer(latent, False, variables).numpy()
        np.testing.assert_allclose(codes * found.scales.numpy(), effective, rtol=1e-5)
        assert np.abs(codes).max() <= quantizer.largest_code
        units = quantizer.units(latent, variables).numpy()
        assert units.min() >= 0
        assert units.max() <= quantizer.top_unit
        of_one = (..., slice(0, 1)) if isinstance(quantizer, LqNetsQuantizer) else ...
        assert len(np.unique(codes[of_one])) == len(np.unique(units[of_one])), str(row)
        # Some weights are 0, and stay so where that is one of the codes.
        by_chance = isinstance(quantizer, LevelsOfWeights) and not quantizer.holds_zero
        assert by_chance or quantizer.holds_zero is bool((effective == 0.0).any()), str(row)


@pytest.mark.parametrize("value", [0.3, -0.3, 0.0, -1e-30])
@pytest.mark.parametrize(
    ("name", "options", "all_bits", "near"),
    [
        ("lsq", {}, [4], 0.25),
        ("lsq", {"start": "error"}, [4], 1e-6),
        ("qil", {}, [2, 8], 1e-6),
        ("kmeans", {}, [2], 1e-6),
        ("kmeans", {"keep_zeros": True}, [2], 1e-6),
        ("lq_nets", {}, [1, 2, 8], 0.02),
    ],
    ids=str,
)
def test_a_constant_kernel_is_one_value(name, options, all_bits, near, value):
    kernel = np.full(SHAPE, value, np.float32)
    for bits in all_bits:
        request = WeightRequest(num_bits=bits, range="layer", options=options)
        quantizer = make_weight_quantizer(name, request)
        _, variables = started(quantizer, kernel)
        with tf.GradientTape() as tape:
            latent = tf.constant(kernel)
            tape.watch(latent)
            made = quantizer(latent, True, variables)
        assert len(np.unique(made)) == 1
        np.testing.assert_allclose(made, kernel, rtol=near, atol=1e-20)
        assert np.isfinite(tape.gradient(made, latent)).all()
        assert (quantizer.integer_weights(kernel, variables).scales.numpy() > 0.0).all()


@pytest.mark.parametrize("bits", [2, 8])
def test_both_kerases_make_the_variables_that_are_declared_in_their_order(bits):
    for row in [*rows(bits), *others()]:
        quantizer, shape = row.quantizer(), row.inputs.shape
        specs = quantizer.variables(shape)
        assert set(specs) == set(row.variables), str(row)
        layer = keras.layers.Layer()
        ours = make_variables(layer, quantizer.variables(tf.TensorShape(shape)))
        layer3 = QuantizedLayer(keras3.layers.Identity())
        theirs = layer3.make_variables(specs)
        assert [*ours] == [*theirs] == [*specs]
        assert [v.name.split(":")[0] for v in layer.weights] == [v.name for v in layer3.weights]
        for name, spec in specs.items():
            one, other = ours[name], theirs[name]
            assert tuple(one.shape) == tuple(other.shape) == tuple(spec.shape)
            assert one.dtype.name == other.dtype == spec.dtype
            assert one.trainable == other.trainable == spec.trainable
            np.testing.assert_array_equal(one, np.full(spec.shape, spec.start, spec.dtype))
            np.testing.assert_array_equal(one, keras3.ops.convert_to_numpy(other))
            for variable in (one, other):
                kept = getattr(variable.constraint, "minimum", None)
                assert kept == spec.lowest


@pytest.mark.parametrize("bits", [2, 5])
def test_variables_follow_the_data_alike_and_those_alone_that_say_so(bits):
    for row in [*rows(bits), *others()]:
        quantizer = row.quantizer()
        ours = {name: tf.Variable(value) for name, value in row.variables.items()}
        theirs = {name: keras3.Variable(value) for name, value in row.variables.items()}
        expected = quantizer(tf.constant(row.inputs), True, ours)
        found = quantizer(keras3.ops.convert_to_tensor(row.inputs), True, theirs)
        np.testing.assert_array_equal(found, expected, err_msg=str(row))
        specs = quantizer.variables(row.inputs.shape)
        for name, variable in ours.items():
            np.testing.assert_array_equal(variable, keras3.ops.convert_to_numpy(theirs[name]))
            if not specs[name].follows_data:
                np.testing.assert_array_equal(variable, row.variables[name])


def test_every_quantizer_has_its_rows_and_both_kerases_the_functions_of_tensorflow():
    own = {name for name, cls in QUANTIZERS.items() if cls.__module__.startswith("sat_tf.")}
    assert {row.name for row in [*rows(3), *others()]} == own
    ours = namespace(tf.constant(1.0))
    assert namespace(keras3.Variable(1.0)) is namespace(tf.Variable(1.0)) is ours


# This is a part of the largest magnitude. Sums and tanh are rounded in other ways, and where dsq is
# steep a value next to the middle of two codes moves its gradient most.
ROOM = 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_values_and_gradients_are_those_on_tensorflow_and_need_none_of_it(backend, tmp_path):
    path = tmp_path / "rows.npz"
    run_on(backend, "-m", "tests.quantizers.rows", path, timeout=600)
    received = dict(np.load(path))
    for number, row in enumerate(every_row()):
        for name, expected in computed(row).items():
            found = received.pop(f"{number} {name}")
            assert found.dtype == expected.dtype
            size = np.max(np.abs(expected.astype(np.float64)), initial=0.0)
            np.testing.assert_allclose(
                found, expected, rtol=0, atol=ROOM * size, err_msg=f"{row}: {name}"
            )
    assert not received


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_tests_of_the_mathematics_pass_without_tensorflow(backend):
    of_tensorflow = ("on_tensorflow", "parameter_sums", "recurrence")
    ignored = [f"--ignore=tests/core/test_{name}.py" for name in of_tensorflow]
    # Draws of many shapes would be compiled one by one.
    marked = ["-m", "not slow and not thorough and not hypothesis"]
    plugin = ["--noconftest", "-p", "tests.core.execution", "-o", "addopts="]
    arguments = ["-m", "pytest", "tests/core", *ignored, *marked, *plugin]
    printed = run_on(backend, *arguments, timeout=1200)
    assert " passed" in printed
