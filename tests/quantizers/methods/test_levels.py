"""The quantizers of k-means and LQ-Nets: their variable, and when it changes; shared values."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sat_tf
from sat_tf.core.tensor_ops import namespace
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.lsq import LsqQuantizer
from sat_tf.quantizers.methods import lq_nets
from sat_tf.quantizers.methods.channel_bits import ChannelBitsQuantizer
from sat_tf.quantizers.methods.kmeans import INITIALIZATIONS, KMeansQuantizer, cluster_ids
from sat_tf.quantizers.methods.lq_nets import LqNetsQuantizer
from sat_tf.quantizers.protocol import Predecessor, WeightRequest
from sat_tf.quantizers.quantizer_table import make_weight_quantizer
from tests import reference
from tests.core.execution import LONG_MODES, MODES, array, draw, tensor, value_and_gradients
from tests.quantizers.held import SHAPE, drawn, started

L = keras.layers
NAMES = {"kmeans": "cluster_ids", "lq_nets": "basis"}


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_variable_is_not_trained_and_starts_at_what_the_kernel_tells(bits):
    quantizer = make_weight_quantizer("kmeans", WeightRequest(num_bits=bits))
    layer, variables = started(quantizer, drawn())
    (ids,) = layer.non_trainable_weights
    assert variables == {"cluster_ids": ids}
    assert (ids.dtype, ids.shape) == (tf.uint8, SHAPE)
    np.testing.assert_array_equal(ids, cluster_ids(drawn(), bits))
    for range_, rows in (("layer", 1), ("channel", 8)):
        request = WeightRequest(num_bits=bits, range=range_)
        quantizer = make_weight_quantizer("lq_nets", request)
        layer, variables = started(quantizer, drawn())
        (basis,) = layer.non_trainable_weights
        assert (basis.dtype, basis.shape) == (tf.float32, (rows, bits))
        axes = (-1,) if rows > 1 else ()
        np.testing.assert_array_equal(basis, lq_nets.first_basis(drawn(), bits, range_axes=axes))
        assert quantizer.integer_weights(drawn(), variables).scales.shape == (1, 1, 1, rows)
    for name in NAMES:
        assert started(make_weight_quantizer(name, WeightRequest(num_bits=None)), drawn())[1] == {}


@pytest.mark.parametrize("shape", [(3, 3, 5, 2), (3, 3, 5, 1), (4, 3)])
def test_depthwise_and_dense_kernels_have_levels_of_their_own_channels(shape):
    kernel = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    axes = (2, 3) if len(shape) == 4 else (1,)
    for name in NAMES:
        request = WeightRequest(num_bits=2, channel_axes=axes)
        quantizer = make_weight_quantizer(name, request)
        _, variables = started(quantizer, kernel)
        found = quantizer.integer_weights(kernel, variables)
        effective = quantizer(kernel, False, variables).numpy()
        products = found.codes.numpy() * found.scales.numpy()
        np.testing.assert_allclose(products, effective, rtol=1e-6)
        channels = np.moveaxis(effective, axes, range(len(axes)))
        channels = channels.reshape(int(np.prod(channels.shape[: len(axes)])), -1)
        for values in channels if name == "lq_nets" else [effective]:
            assert len(np.unique(values)) <= 4


@pytest.mark.parametrize("training", [True, 1, tf.constant(True)], ids=["True", "1", "tensor"])
def test_levels_follow_the_weights_in_training_alone(training):
    moved = tf.constant(2.0 * drawn() + 0.05 * drawn(1))
    for quantizer in (
        LqNetsQuantizer(num_bits=2, range_axes=(3,)),
        KMeansQuantizer(num_bits=2, reassign=True),
        KMeansQuantizer(num_bits=2),
    ):
        _, variables = started(quantizer, drawn())
        (variable,) = variables.values()
        before = variable.numpy()
        for other in (False, 0, None, tf.constant(False)):
            quantizer(moved, other, variables)
            np.testing.assert_array_equal(variable, before)
        first = quantizer(moved, False, variables)
        np.testing.assert_array_equal(quantizer(moved, training, variables), first)
        follows = not isinstance(quantizer, KMeansQuantizer) or quantizer.reassign
        assert np.array_equal(variable, before) != follows


def test_a_basis_that_has_momentum_1_stays_and_one_of_0_is_the_best_at_once():
    moved = tf.constant(2.0 * drawn())
    for momentum in (0.0, 0.5, 1.0):
        quantizer = LqNetsQuantizer(num_bits=2, momentum=momentum)
        _, variables = started(quantizer, drawn())
        before = variables["basis"].numpy()
        best = lq_nets.next_basis(moved, before, momentum=0.0).numpy()
        quantizer(moved, True, variables)
        wanted = momentum * before + (1 - momentum) * best
        np.testing.assert_allclose(variables["basis"], wanted, rtol=1e-5)


def _model():
    image = keras.Input((6, 6, 3))
    tensor = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, name="conv")(image)))
    model = keras.Model(image, L.Dense(3, name="classifier")(L.Flatten()(tensor)))
    kernel = model.get_layer("classifier").kernel
    kernel.assign(tf.where(tf.abs(kernel) < 0.08, 0.0, kernel))
    return model


def _fit(model, epochs=1):
    draw = np.random.default_rng(0)
    images, targets = draw.integers(0, 256, (32, 6, 6, 3)), draw.normal(size=(32, 3))
    model.fit(images, targets, verbose=0, epochs=epochs)


@pytest.mark.filterwarnings("ignore:model")
@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_layer_keeps_its_levels(name):
    options = {"reassign": True} if name == "kmeans" else {}
    fields = {"weight_quantizer": name, "weight_options": options, "first_last_weight_bits": None}
    policy = BitPolicy.mobile(3, **fields)
    model = sat_tf.quantize_model(_model(), policy)
    model.get_layer("quant_conv").trainable = False
    model.compile(keras.optimizers.SGD(1e-2), "mse")
    layers = [model.get_layer(f"quant_{layer}") for layer in ("conv", "classifier")]
    before = [layer.kernel_variables[NAMES[name]].numpy() for layer in layers]
    _fit(model, epochs=2)
    same = [
        np.array_equal(layer.kernel_variables[NAMES[name]], old)
        for layer, old in zip(layers, before, strict=True)
    ]
    assert same == [True, False]


@pytest.mark.filterwarnings("ignore:model")
def test_zeros_of_a_pruned_model_stay_where_that_is_asked():
    fields = {"weight_quantizer": "kmeans", "weight_options": {"keep_zeros": True}}
    policy = BitPolicy.mobile(4, **fields, first_last_weight_bits=None)
    model = sat_tf.quantize_model(_model(), policy)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    zeros = _zeros(model)
    assert 0.3 < zeros.mean() < 0.7
    _fit(model)
    np.testing.assert_array_equal(_zeros(model), zeros)


@pytest.mark.filterwarnings("ignore:.*no BatchNorm")
@pytest.mark.parametrize(
    ("name", "fix"), [("kmeans", "weight_options={'keep_zeros': True}"), ("lq_nets", "'lsq'")]
)
def test_zeros_of_a_pruned_model_that_are_lost_are_warned_of_with_what_keeps_them(name, fix):
    with pytest.warns(UserWarning, match="classifier .* do not stay 0") as caught:
        sat_tf.quantize_model(_model(), BitPolicy.mobile(4, weight_quantizer=name))
    assert any(fix in str(one.message) for one in caught)


def _zeros(model):
    return model.get_layer("quant_classifier").effective_kernel().numpy() == 0.0


_ChannelBits = functools.partial(ChannelBitsQuantizer, range_axes=(3,))


@pytest.mark.parametrize(
    ("kind", "old", "new", "anew"),
    [
        (KMeansQuantizer, {}, {"reassign": True}, False),
        (KMeansQuantizer, {}, {"num_bits": 2}, True),
        (KMeansQuantizer, {}, {"keep_zeros": True}, True),
        (KMeansQuantizer, {"num_bits": None}, {}, True),
        (LqNetsQuantizer, {}, {"momentum": 0.5}, False),
        (LqNetsQuantizer, {}, {"num_bits": 4}, True),
        (LqNetsQuantizer, {}, {"range_axes": (3,)}, True),
        (_ChannelBits, {}, {"over_size": False}, False),
        *(
            (_ChannelBits, {}, new, True)
            for new in ({"num_bits": 2}, {"lowest": 1}, {"highest": 5}, {"grid": "narrow"})
        ),
        (_ChannelBits, {"num_bits": None}, {}, True),
    ],
)
def test_another_policy_keeps_the_levels_unless_they_would_start_otherwise(kind, old, new, anew):
    old, new = (kind(**{"num_bits": 3, **settings}) for settings in (old, new))
    _, had = started(old, drawn())
    for variable in had.values():
        variable.assign(variable + tf.cast(1, variable.dtype))  # what training has made of them
    _, variables = started(new, drawn())
    name, first = new.levels_name, variables[new.levels_name].numpy()
    new.carry(tf.constant(drawn()), variables, Predecessor(old, had, keep_function=True))
    np.testing.assert_array_equal(variables[name], first if anew else had[name])


@pytest.mark.parametrize(
    ("kind", "learnt", "bits"),
    [
        *((LsqQuantizer, "magnitude", bits) for bits in range(2, 9)),
        *((LqNetsQuantizer, "basis", bits) for bits in (1, 2, 4, 8)),
    ],
)
def test_weights_can_be_held_at_their_codes_whatever_is_learnt(kind, learnt, bits):
    kernel = tf.constant(drawn())
    quantizer = kind(num_bits=bits, range_axes=(3,))
    _, variables = started(quantizer, drawn())
    units = quantizer.units(kernel, variables)
    held = tf.constant(np.random.default_rng(0).random(SHAPE) < 0.5)
    assert quantizer.can_be_held(kernel, variables).numpy().all()
    variables[learnt].assign(variables[learnt] * 1.3)
    moved = quantizer.hold(kernel, variables, units, held)
    np.testing.assert_array_equal(
        quantizer.units(moved, variables).numpy()[held], units.numpy()[held]
    )
    np.testing.assert_array_equal(moved.numpy()[~held], kernel.numpy()[~held])


def test_a_floor_above_the_bits_makes_a_finer_grid():
    kernel = tf.constant(drawn())
    for name in NAMES:
        quantizer = make_weight_quantizer(name, WeightRequest(num_bits=2))
        _, variables = started(quantizer, drawn())
        own = quantizer(kernel, False, variables).numpy()
        made = {
            floor: quantizer(
                kernel, False, {**variables, "bit_floor": tf.constant(floor, tf.int64)}
            )
            for floor in (8, 5, 3, 2)
        }
        errors = [float(tf.reduce_mean((made[floor] - kernel) ** 2)) for floor in (8, 5, 3)]
        assert errors == sorted(errors)
        np.testing.assert_array_equal(made[2], own)


BITS = range(1, 9)


@pytest.mark.parametrize("initialization", INITIALIZATIONS)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_no_weight_is_nearer_to_another_cluster_and_the_error_is_not_far_from_the_smallest(
    bits, initialization
):
    normal = drawn(0, 0.4, (120,))
    for kernel in (normal, normal**3, np.abs(normal) + 1):
        ids = cluster_ids(kernel, bits, initialization=initialization)
        centers = np.array([kernel[ids == k].mean(dtype=np.float64) for k in range(2**bits)])
        np.testing.assert_array_equal(np.argmin(np.abs(kernel[:, None] - centers), axis=1), ids)
        error = ((kernel - centers[ids]) ** 2).sum()
        # Centroids that start where weights are many miss the few large ones.
        most = 2.0 if initialization == "linear" else 6.0
        assert error <= most * reference.smallest_error(kernel, 2**bits)


@given(
    bits=st.sampled_from(BITS),
    weights=hnp.arrays(np.float32, st.integers(1, 400), elements=st.floats(-8, 8, width=32)),
    initialization=st.sampled_from(sorted(INITIALIZATIONS)),
    keep_zeros=st.booleans(),
)
def test_clusters_are_ordered_and_codes_times_the_scale_are_the_weights(
    bits, weights, initialization, keep_zeros
):
    choice = {"keep_zeros": keep_zeros}
    ids = cluster_ids(weights, bits, initialization=initialization, **choice)
    assert ids.max() < 2**bits
    is_other = (weights != 0) | (not keep_zeros)
    assert (np.diff(ids[is_other][np.argsort(weights[is_other])]) >= 0).all()
    assert not keep_zeros or ((ids == 0) == (weights == 0)).all()
    quantizer = KMeansQuantizer(num_bits=bits, **choice)
    found = quantizer.integer_weights(weights, {"cluster_ids": ids})
    codes, scale = found.codes, found.scales.numpy().item()
    value = quantizer.values(weights, ids).numpy()
    np.testing.assert_array_equal(value, codes.numpy().astype(np.float32) * np.float32(scale))
    assert np.abs(codes).max() <= 127
    assert len(np.unique(value)) <= 2**bits


@pytest.mark.parametrize("bits", BITS)
def test_fewer_distinct_weights_than_clusters_have_one_each_and_none_is_empty_at_others(bits):
    weights = np.resize(np.array([-0.5, 0.25], np.float32), (3, 3, 4, 5))
    ids = cluster_ids(weights, bits)
    assert np.unique(ids).tolist() == [0, 1]
    value = KMeansQuantizer(num_bits=bits).values(weights, ids).numpy()
    np.testing.assert_allclose(value, weights, atol=0.5 / 254)
    weights = np.concatenate([drawn(0, 0.01, (500,)), [9.0, 9.0, -7.0]]).astype(np.float32)
    for initialization in INITIALIZATIONS:
        ids = cluster_ids(weights, 4, initialization=initialization)
        assert len(np.unique(ids)) == 16


# -- shared values by hand, and those of the reference ---------------------------------------------


def _run(latent, ids, bits, upstream=None, mode="eager", **options):
    quantizer = KMeansQuantizer(num_bits=bits, **options)
    return value_and_gradients(lambda w: quantizer.values(w, ids), [latent], upstream, mode)


def _codes(latent, ids, bits, **options):
    quantizer = KMeansQuantizer(num_bits=bits, **options)
    found = quantizer.integer_weights(tensor(latent), {"cluster_ids": ids})
    return array(found.codes).tolist(), array(found.scales).item()


def _nearest(latent, ids, bits, **options):
    quantizer = KMeansQuantizer(num_bits=bits, **options)
    return array(quantizer.next_levels(tensor(latent), tensor(np.uint8(ids)))).tolist()


# 2 bits, with clusters 0, 1, 2 and none in 3. The largest mean is 1.27, so that s is 0.01.
#   w          -1.30  -1.24   0.10   0.208   0.80
#   cluster       0      0      1      1       2
#   mean       -1.27  -1.27   0.154  0.154   0.80
#   code        -127   -127     15     15      80
#   gradient       1      3      5      7      11
#   dL/dw          2      2      6      6      11
@pytest.mark.parametrize("mode", MODES)
def test_2_bit_weights_worked_by_hand(mode):
    w, ids = np.array([-1.30, -1.24, 0.10, 0.208, 0.80], np.float32), [0, 0, 1, 1, 2]
    upstream = np.array([1, 3, 5, 7, 11], np.float32)
    value, gradient = _run(w, ids, 2, upstream, mode)
    np.testing.assert_allclose(value, [-1.27, -1.27, 0.15, 0.15, 0.80], rtol=1e-5)
    assert gradient.tolist() == [2, 2, 6, 6, 11]
    assert _run(w, ids, 2, upstream, mode, reassign=True)[1].tolist() == upstream.tolist()
    assert _codes(w, ids, 2) == ([-127, -127, 15, 15, 80], pytest.approx(0.01, rel=1e-6))
    units = KMeansQuantizer(num_bits=2).units(tensor(w), {"cluster_ids": ids})
    assert array(units).tolist() == ids


def test_weights_of_0_stay_0_and_have_no_gradient_where_they_are_kept():
    w, ids = np.array([0.0, 0.0, 0.5, 0.7], np.float32), [0, 0, 1, 1]
    value, gradient = _run(w, ids, 2, np.array([1, 2, 3, 5], np.float32), keep_zeros=True)
    np.testing.assert_allclose(value, [0.0, 0.0, 0.6, 0.6], rtol=1e-6)
    assert gradient.tolist() == [0, 0, 4, 4]
    _, gradient = _run(
        w, ids, 2, np.array([1, 2, 3, 5], np.float32), keep_zeros=True, reassign=True
    )
    assert gradient.tolist() == [0, 0, 3, 5]
    moved = np.array([0.1, -0.1, 0.5, 0.7], np.float32)  # whatever an optimizer adds to them
    assert _run(moved, ids, 2, keep_zeros=True)[0].tolist()[:2] == [0.0, 0.0]


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("keep_zeros", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_weights_and_gradients_are_those_of_the_reference(bits, keep_zeros, mode):
    latent, upstream = draw((3, 3, 8, 16)), draw((3, 3, 8, 16), 1)
    latent[..., :2] = 0.0
    ids = cluster_ids(latent, bits, keep_zeros=keep_zeros)
    latent += draw((3, 3, 8, 16), 2, 0.02)  # training has moved them
    value, gradient = _run(latent, ids, bits, upstream, mode, keep_zeros=keep_zeros)
    values = reference.shared_values(latent, ids, keep_zeros)
    # A value may be next to a tie between two codes.
    off = np.abs(value - np.vectorize(values.get)(ids)) / max(map(abs, values.values())) * 127
    assert (off < 1e-3).mean() > 0.99
    assert off.max() < 1.001
    wanted = reference.shared_gradient(upstream, ids)
    wanted[keep_zeros & (ids == 0)] = 0.0
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-7)


def test_what_is_not_finite_harms_nothing_else():
    latent = np.array([np.nan, 0.5, np.inf, 0.7, -0.2, -np.inf], np.float32)
    ids = cluster_ids(latent, 1)
    value, gradient = _run(latent, ids, 1)
    assert np.isnan(value[0])
    np.testing.assert_allclose(value[[1, 3]], 0.6, rtol=1e-6)
    assert np.isfinite(value[1:]).all()
    assert np.isfinite(gradient).all()
    assert _nearest(latent, ids, 1)[0] == ids[0]
    assert cluster_ids(np.full((3,), np.nan), 2).max() < 4


@pytest.mark.parametrize("keep_zeros", [False, True])
def test_weights_move_to_the_nearest_mean_none_to_an_empty_cluster_and_others_than_numbers_stay(
    keep_zeros,
):
    latent = np.array([0.0, 0.0, 1.0, 1.2, 3.0, 3.2], np.float32)
    ids = np.array([0, 0, 1, 1, 2, 2])  # and none in 3
    latent[3] = 2.9
    found = _nearest(latent, ids, 2, keep_zeros=keep_zeros)
    assert found == [0, 0, 1, 2, 2, 2]  # means 0, 1.95 and 3.1; 1 is as near to 0 as not
    latent[2] = 0.1
    moved = _nearest(latent, ids, 2, keep_zeros=keep_zeros)
    assert moved[2] == (1 if keep_zeros else 0)
    latent = np.float32([-1.0, 0.4, 0.25, 0.5, 0.0, np.nan, np.inf])
    ids = np.uint8([1, 1, 2, 2, 0, 3, 0])
    # Means: 0 of cluster 0, -0.3 and 0.375, and none of cluster 3.
    assert _nearest(latent, ids, 2, keep_zeros=keep_zeros) == [1, 2, 2, 2, 0, 3, 0]


def test_sums_are_by_id():
    values, ids = tensor([[1.0, 2.0], [4.0, 8.0]]), tensor(np.int32([[2, 0], [2, 3]]))
    found = namespace(values).sums_by_id(values, ids, 5)
    assert array(found).tolist() == [2.0, 0.0, 5.0, 8.0, 0.0]


# -- LQ-Nets by hand, and as the reference has it --------------------------------------------------


def _basis(bits, ranges=1, seed=0):
    noise = np.random.default_rng(seed).uniform(0.9, 1.1, (ranges, bits))
    return (0.8 * noise * 2.0 ** np.arange(bits) / 2**bits).astype(np.float32)


def _ranges(array, axes):
    """The weights of each range in a row, and back."""
    keep = sorted(axis % array.ndim for axis in axes)
    moved = np.moveaxis(array, keep, range(len(keep)))
    rows = moved.reshape(int(np.prod(moved.shape[: len(keep)])), -1)
    return rows, lambda made: np.moveaxis(made.reshape(moved.shape), range(len(keep)), keep)


def _of_basis(basis, range_axes=()):
    return LqNetsQuantizer(num_bits=basis.shape[-1], range_axes=range_axes)


def _fitted(latent, basis, upstream=None, mode="eager", range_axes=()):
    quantizer = _of_basis(basis, range_axes)
    return value_and_gradients(lambda w: quantizer.values(w, basis), [latent], upstream, mode)


# 2 bits: t = 1.27 / 253, so that v / t is 126.5 and 126.5, both round to 127, and s = 0.01.
# The levels are v · e = -1.27, 0, 0, 1.27. With v = (0.42, 0.84): n = (84, 168), and levels ±0.42
# and ±1.26 between which the ties are at -0.84, 0 and 0.84.
#   w     -2.0   -0.85  -0.83   -0.01   0      0.83   0.85    9
#   q     -1.26  -1.26  -0.42   -0.42   0.42   0.42   1.26   1.26
@pytest.mark.parametrize("mode", MODES)
def test_2_bit_weights_of_a_basis_worked_by_hand(mode):
    integers, scale = lq_nets.snapped_basis(np.float32([[0.635, 0.635], [0.42, 0.84]]))
    assert array(integers).tolist() == [[127, 127], [84, 168]]
    np.testing.assert_allclose(array(scale), [[0.01], [0.01]], rtol=1e-6)
    w = np.array([-2.0, -0.85, -0.83, -0.01, 0.0, 0.83, 0.85, 9.0], np.float32)  # 0 is halfway
    basis = np.array([[0.42, 0.84]], np.float32)
    value, gradient = _fitted(w, basis, mode=mode)
    wanted = [-1.26, -1.26, -0.42, -0.42, 0.42, 0.42, 1.26, 1.26]
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    assert gradient.tolist() == [1.0] * 8
    quantizer, variables = _of_basis(basis), {"basis": basis}
    found = quantizer.integer_weights(w, variables)
    assert array(found.codes).tolist() == [-126, -126, -42, -42, 42, 42, 126, 126]
    assert array(found.scales).ravel() == pytest.approx([0.01], rel=1e-6)
    assert array(quantizer.units(w, variables)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", BITS)
def test_weights_and_the_next_basis_are_those_of_the_reference(bits, axes, mode):
    latent, upstream = draw(), draw(seed=1)
    rows, back = _ranges(latent, axes)
    basis = _basis(bits, len(rows))
    value, gradient = _fitted(latent, basis, upstream, mode, axes)
    pairs = [reference.lq_nearest(row, v) for row, v in zip(rows, basis, strict=True)]
    wanted = back(np.stack([level for level, _ in pairs]))
    # Next to a tie float32 may choose the other level.
    clear = np.abs(value - wanted) < 1e-5
    assert clear.mean() > (0.99 if bits < 8 else 0.95)
    np.testing.assert_allclose(
        np.abs(value - latent), np.abs(wanted - latent), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(gradient, upstream)
    if mode == "eager":  # codes times scales are the weights bit by bit, as are those that are held
        quantizer, variables = _of_basis(basis, axes), {"basis": basis}
        integers = quantizer.integer_weights(latent, variables)
        codes, scales = array(integers.codes), array(integers.scales)
        np.testing.assert_array_equal(codes.astype(np.float32) * scales.astype(np.float32), value)
        every, units = tensor(latent) > -np.inf, quantizer.units(latent, variables)
        held = quantizer.hold(tensor(latent), variables, units, every)
        np.testing.assert_array_equal(array(held), value)


@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_next_basis_is_that_of_the_reference(bits, axes):
    latent = draw()
    rows, _ = _ranges(latent, axes)
    basis = _basis(bits, len(rows))
    # Either of two equal levels could be the nearest.
    codes, _, _ = lq_nets.levels_of(basis)
    assert (np.diff(array(codes)) > 0).all()
    found = array(lq_nets.next_basis(latent, basis, range_axes=axes, momentum=0.25))
    fits = [reference.lq_fit(row, v) for row, v in zip(rows, basis, strict=True)]
    np.testing.assert_allclose(found, 0.25 * basis + 0.75 * np.stack(fits), atol=2e-5)


@given(
    basis=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 8)),
        elements=st.floats(-4, 4, width=32),
    )
)
def test_every_level_is_an_integer_of_int8(basis):
    integers, scale = map(array, lq_nets.snapped_basis(basis))
    codes = array(lq_nets.levels_of(basis)[0])
    assert (scale > 0.0).all()
    np.testing.assert_array_equal(codes, np.round(codes))
    assert np.abs(codes).max() <= 127
    assert (np.diff(codes) >= 0).all()
    np.testing.assert_array_equal(codes, -codes[:, ::-1])
    for row, own, one in zip(basis.astype(np.float64), integers, scale, strict=True):
        reach = np.abs(row).sum()
        if reach > 1e-15:
            # Half a unit by rounding, one where the sum is odd, and what the fit moves.
            assert np.abs(own * one.item() / 2.0 - row).max() <= 2.5 * reach / 250


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_the_first_basis_is_better_than_a_uniform_grid_and_training_keeps_it_good(bits):
    latent = draw((3, 3, 16, 32))
    variance = np.var(latent)
    basis = lq_nets.first_basis(latent, bits)

    def error(v):
        return np.mean((array(_of_basis(v).values(latent, v)) - latent) ** 2) / variance

    # The best uniform quantizer of a normal distribution, which is 0.3634 at 1 bit.
    uniform = [0.3634, 0.1188, 0.03744, 0.01154, 0.003495, 0.00104, 0.000304, 0.0001]
    assert error(basis) < 1.06 * uniform[bits - 1]
    moved = basis
    for _ in range(20):
        moved = lq_nets.next_basis(latent, moved)
    assert error(moved) < 1.06 * uniform[bits - 1]


def test_a_range_of_zeros_stays_zero_and_comes_back_when_it_is_not():
    latent = draw()
    latent[..., 0] = 0.0
    basis = lq_nets.first_basis(latent, 2, range_axes=(3,))
    assert not array(basis)[0].any()
    value = array(_of_basis(basis, (3,)).values(latent, basis))
    assert not value[..., 0].any()
    basis = lq_nets.next_basis(latent, basis, range_axes=(3,))
    assert not array(basis)[0].any()
    latent[..., 0] = draw()[..., 0]
    for _ in range(40):
        basis = lq_nets.next_basis(latent, basis, range_axes=(3,))
    made = array(_of_basis(basis, (3,)).values(latent, basis))
    off = ((made - latent) ** 2).mean((0, 1, 2)) / latent.var((0, 1, 2))
    assert off[0] < 0.25


def test_what_is_not_finite_harms_no_basis():
    latent = np.array([np.nan, np.inf, -np.inf, 0.3, -0.2], np.float32)
    basis = _basis(3)
    upstream = np.arange(5.0, dtype=np.float32)
    value, gradient = _fitted(latent, basis, upstream)
    top = _fitted(np.float32([9.0]), basis)[0].item()
    np.testing.assert_array_equal(value[:3], np.float32([np.nan, top, -top]))
    np.testing.assert_array_equal(gradient, upstream)
    found, alone = (array(lq_nets.next_basis(each, basis)) for each in (latent, latent[3:]))
    np.testing.assert_array_equal(found, alone)
    w = np.float32([-3.0, -1.0, 1.0, 3.0])
    special = np.concatenate([w, np.float32([np.nan, np.inf, -np.inf])])
    found, expected = (
        array(lq_nets.next_basis(each, np.float32([[0.8, 1.7]]), momentum=0.0))
        for each in (special, w)
    )
    np.testing.assert_allclose(expected, [[1.0, 2.0]], atol=1e-3)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    nothing = array(lq_nets.next_basis(np.float32([np.nan, np.nan]), basis))
    np.testing.assert_allclose(nothing, basis, rtol=1e-6)


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_a_basis_beyond_float32_counts_as_zeros_and_does_not_spread(value):
    basis = np.array([[value, value, 0.5], [0.5, 0.5, 0.25]], np.float32)
    latent = np.stack([np.full(9, 3e38, np.float32), draw((9,))])
    codes, order, _ = lq_nets.levels_of(basis)
    assert not array(codes)[0].any()
    assert np.sort(array(order)).tolist() == [list(range(8))] * 2
    made = array(_of_basis(basis, (0,)).values(latent, basis))
    assert not made[0].any()
    found = array(lq_nets.next_basis(latent, basis, range_axes=(0,)))
    alone = array(lq_nets.next_basis(latent[1:], basis[1:], range_axes=(0,)))
    np.testing.assert_allclose(found[1:], alone, rtol=1e-6)
