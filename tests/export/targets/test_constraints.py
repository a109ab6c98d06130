import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export.targets import constraints
from sat_tf.export.tflite.contents import StoredOperator, StoredTensor
from sat_tf.qat.policy import BitPolicy

_SAME, _VALID = tfl.Padding.SAME, tfl.Padding.VALID


def _tensor(shape, kind="INT8", *, values=None, scales=1, name="x"):
    numbers, data = np.ones(scales, np.float32), None
    if values is not None:
        data = (
            np.asarray(values, np.int32 if kind == "INT32" else np.int8).reshape(-1).view(np.uint8)
        )
    return StoredTensor(name, kind, shape, numbers, np.zeros(scales, np.int64), 0, data)


def _options(kind, **settings):
    made = getattr(tfl, f"{kind}T")()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def _operator(name, inputs, output, options=None):
    return StoredOperator(name, tuple(inputs), (output,), options)


def _convolution(kernel, **settings):
    options = {"padding": _SAME, "strideH": 1, "strideW": 1, **settings}
    return _operator(
        "CONV_2D",
        [_tensor((1, 8, 8, 4)), kernel],
        _tensor((1, 8, 8, 4)),
        _options("Conv2DOptions", **options),
    )


def _resized(before, after, **settings):
    options = _options("ResizeBilinearOptions", **settings)
    sizes = _tensor((2,), "INT32", values=after, scales=0)
    return _operator(
        "RESIZE_BILINEAR", [_tensor((1, *before, 3)), sizes], _tensor((1, *after, 3)), options
    )


def _meets(constraint, operator):
    return constraint(operator) == ("", "")


def test_types_are_those_of_tensors_that_operators_make():
    bias = _tensor((4,), "INT32", values=[0, 0, 0, 0])
    made = _operator("ADD", [_tensor((1, 4)), bias], _tensor((1, 4), "FLOAT32", name="sum"))
    reason, fix = constraints.of_types("INT8", fix="quantize it")(made)
    assert reason == "its tensor sum is FLOAT32, it takes INT8"
    assert fix == "quantize it"


@pytest.mark.parametrize(("kind", "met"), [("INT8", True), ("INT4", False), ("INT2", False)])
def test_kernels_are_of_bytes(kind, met):
    kernel = _tensor((4, 3, 3, 4), kind, values=np.zeros((4, 3, 3, 4), np.int8))
    assert _meets(constraints.weights_of("INT8", fix=""), _convolution(kernel)) is met


def test_kernels_that_operators_make_are_none():
    operator = _convolution(_tensor((4, 3, 3, 4)))
    reason, _ = constraints.weights_of("INT8", fix="")(operator)
    assert reason == "its weights are made by another operator"


@pytest.mark.parametrize("limit", [36 * 127, 36 * 127 - 1])
def test_magnitudes_of_one_output_add_up_to_a_limit(limit):
    values = np.full((4, 3, 3, 4), -127, np.int8)
    operator = _convolution(_tensor((4, 3, 3, 4), values=values))
    assert _meets(constraints.largest_sum_of_weights(limit), operator) is (limit == 36 * 127)


@pytest.mark.parametrize(
    ("step", "padding", "more", "met"),
    [
        (3, _SAME, False, True),
        (4, _SAME, True, False),
        (4, _VALID, True, True),
        (4, _VALID, False, False),
    ],
)
def test_large_strides_need_windows_without_padding(step, padding, more, met):
    kernel = _tensor((4, 3, 3, 4), values=np.zeros((4, 3, 3, 4), np.int8))
    operator = _convolution(kernel, padding=padding, strideH=step)
    found = constraints.strides(3, more_where_valid=more)(operator)
    assert (found == ("", "")) is met
    assert met or found[1].startswith("use strides of at most 3,")


def test_the_fix_for_several_scales_is_a_field_of_policies():
    kernel = _tensor((4, 8), values=np.zeros((4, 8), np.int8), scales=4)
    _, fix = constraints.one_scale(_operator("FULLY_CONNECTED", [_tensor((1, 8)), kernel], kernel))
    assert "use weight_range='layer' in the policy" in fix
    assert BitPolicy.mobile(4, weight_range="layer").weight_range == "layer"


@pytest.mark.parametrize(
    ("before", "after", "settings", "met"),
    [
        ((4, 4), (8, 8), {}, True),
        ((4, 4), (12, 12), {}, False),
        ((4, 4), (8, 16), {}, False),
        ((1, 12), (1, 24), {}, True),
        ((1, 1), (7, 3), {}, True),
        ((4, 4), (4, 4), {}, True),
        ((4, 4), (16, 16), {"halfPixelCenters": True}, False),
        ((4, 4), (8, 8), {"halfPixelCenters": True}, True),
        ((3, 3), (5, 5), {"alignCorners": True}, True),
    ],
)
def test_images_are_resized_by_some_factors(before, after, settings, met):
    constraint = constraints.scales_by(2, 4, 8, half_pixels=(2,))
    assert _meets(constraint, _resized(before, after, **settings)) is met


@pytest.mark.parametrize(("after", "met"), [((12, 20), True), ((13, 20), False)])
def test_images_grow_so_many_times(after, met):
    assert _meets(constraints.scales_to_at_most(3), _resized((4, 7), after)) is met


@pytest.mark.parametrize(("axes", "met"), [([1, 2], True), ([0], False), ([-1], False)])
def test_a_mean_is_one_of_rows_and_columns(axes, met):
    source, given = _tensor((1, 4, 4, 3)), _tensor((len(axes),), "INT32", values=axes)
    operator = _operator("MEAN", [source, given], _tensor((1, 3)))
    assert _meets(constraints.reduced_axes(largest=4096), operator) is met


@pytest.mark.parametrize(("steps", "met"), [([1, 1, 1], True), ([1, 2, 1], False)])
def test_slices_take_every_value(steps, met):
    numbers = [_tensor((3,), "INT32", values=values) for values in ([0] * 3, [4] * 3, steps)]
    operator = _operator("STRIDED_SLICE", [_tensor((4, 4, 4)), *numbers], _tensor((4, 2, 4)))
    assert _meets(constraints.slices_by_one, operator) is met
    assert _meets(constraints.strided_slice, operator)


@pytest.mark.parametrize(("shape", "met"), [((1, 4, 4, 3), True), ((2, 4, 4, 3), False)])
def test_only_the_innermost_axes_are_longer_than_one(shape, met):
    operator = _operator("RELU", [_tensor(shape)], _tensor(shape))
    assert _meets(constraints.images_of_three_axes, operator) is met


@pytest.mark.parametrize(("shape", "met"), [((1, 4, 4, 3), True), ((4, 8), True)])
def test_images_are_taken_one_by_one(shape, met):
    operator = _operator("MEAN", [_tensor(shape)], _tensor(shape))
    assert _meets(constraints.one_of_a_batch, operator) is met
    operator = _operator("MEAN", [_tensor((4, 8, 8, 3))], _tensor((4, 3)))
    reason, fix = constraints.one_of_a_batch(operator)
    assert (reason, fix) == ("it reads 4 images, it takes one", "write the file for one image")
