"""Placements worked out by hand from the rules, for the graphs of `float_models`.

Quantizers by layer, inserted ones by "tensor > readers". w4: 4-bit weights; w4*: rescaled as well;
u4, s8: an unsigned or a signed tensor; o: a tensor whose range is observed.
"""

_CLASSIFIER = {"classifier": "w8* o"}
_POOL_AND_CLASSIFIER = {"pool": "u8", **_CLASSIFIER}
_STREAM_CLASSIFIER = {"pool": "s8", **_CLASSIFIER}

# Rectifiers become quantizers; what anything but a linear layer reads, or no rectifier makes, has 8
# bits, and linear layers read it as it is; only what has no normalization behind it is rescaled;
# first and last layers have 8-bit weights; logits are observed.
MOBILE = {
    "plain": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w4",
        "b_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "without_normalization": {
        "image > a": "image",
        "a": "w8* u4",
        "b": "w4*",
        "b_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "depthwise": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w4",
        "b_relu": "u4",
        "c": "w4* u8",
        **_POOL_AND_CLASSIFIER,
    },
    "mobile_block": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "project": "w4",
        "project_bn": "s8",
        "expand": "w4",
        "expand_relu": "u4",
        "again": "w4",
        "again_bn": "s8",
        "add": "s8",  # integer sums that can be negative saturate at 8 bits only
        "last": "w4",
        "last_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "preactivation": {
        "image > stem": "image",
        "stem": "w8* s8",
        "a_relu": "u4",
        "a_conv": "w4* s8",
        "a_add": "s8",
        "b_relu": "u4",
        "b_conv": "w4* s8",
        "b_add": "s8",
        "last_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "residual": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u8",
        "b": "w4",
        "b_bn": "s8",
        "add_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "sum_of_three": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u8",
        "b": "w4* s8",
        "c": "w4",
        "c_bn": "s8",
        "add": "s8",
        **_STREAM_CLASSIFIER,
    },
    "sum_with_itself": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u8",
        "add": "u8",  # a sum of rectified tensors is not negative
        **_POOL_AND_CLASSIFIER,
    },
    "sum_with_the_image": {
        "image > a add": "image",
        "a": "w8* s8",
        "add": "s8",
        **_STREAM_CLASSIFIER,
    },
    "two_readers": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",  # shared by both readers
        "b": "w4* s8",
        "c": "w4* s8",
        "add": "s8",
        **_STREAM_CLASSIFIER,
    },
    "branches": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u8",
        "b": "w4",  # what only the concatenation reads has its grid
        "c": "w4",
        "joined": "s8",
        "d": "w4",
        "d_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "rectified_branches": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w4",
        "c": "w4*",
        "c_relu": "u8",  # padded before it is joined
        "joined": "u4",
        "d": "w4",
        "d_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "two_normalizations": {
        "image > a": "image",
        "a": "w8 s8",
        "a_bn": "s8",
        "b_relu": "u8",
        "add": "s8",
        **_STREAM_CLASSIFIER,
    },
    "average_pool_same": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "average_pool_of_a_stream": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w4* s8",
        "pool": "s8",
        "classifier": "w8* o",
    },
    "max_pool_between": {
        "image > a": "image",
        "a": "w8* s8",  # the pool passes codes on to the convolution behind it
        "b": "w4* s8",
        "b_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "dropout": {"image > a": "image", "a": "w8", "a_relu": "u8", **_POOL_AND_CLASSIFIER},
    "softmax_in_the_classifier": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "classifier": "w8* o",
    },
    "rectified_before_normalization": {
        "image > a": "image",
        "a": "w8* u8",
        "a_bn": "s8",
        "b": "w4* s8",
        **_STREAM_CLASSIFIER,
    },
    "padded": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w4*",
        "b_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "normalized_image": {
        "image > image_bn": "image",
        "image_bn": "s8",
        "a": "w8",
        "a_relu": "u8",
        **_POOL_AND_CLASSIFIER,
    },
    "rectified_logits": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w4",
        "b_relu": "u8",
        "pool": "u8",
        "classifier": "w8*",
        "logits_relu": "o",
    },
    "two_dense": {"image > flatten": "image", "hidden": "w8* u4", "classifier": "w8* o"},
    "one_convolution": {"image > a": "image", "a": "w8* o"},
    "sum_as_output": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w8* s8",
        "c": "w8* s8",
        "add": "o",
    },
    "normalization_as_output": {"image > a": "image", "a": "w8", "a_bn": "o"},
    "linear_activation": {
        "image > a": "image",
        "a": "w8",
        "a_bn": "s8",
        **_STREAM_CLASSIFIER,
    },
    "sequential_with_input_layer": {
        "image > conv": "image",
        "conv": "w8",
        "relu": "u4",
        "classifier": "w8* o",
    },
    "sequential_built_later": {
        "conv_input > conv": "image",
        "conv": "w8* u4",
        "classifier": "w8* o",
    },
    "dense_only": {"image > hidden": "image", "hidden": "w8* u4", "classifier": "w8* o"},
}
for _same in ("relu6", "activation_layers", "no_gamma", "any_image_size", "reshaped_logits"):
    MOBILE[_same] = MOBILE["plain"]
for _same in ("softmax_layer", "softmax_activation_layer"):
    MOBILE[_same] = MOBILE["plain"]
MOBILE["frozen_normalization"] = MOBILE["dropout"]

# The same with streams requantized in front of linear layers.
_COARSE_POOL = {"pool": "u4", **_CLASSIFIER}
_COARSE_STREAM = {"pool": "s8", "pool > classifier": "s4", **_CLASSIFIER}
REQUANTIZED = {
    "plain": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w4",
        "b_relu": "u8",
        **_COARSE_POOL,
    },
    "mobile_block": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "project": "w4",
        "project_bn": "s8",
        "project_bn > expand": "s4",
        "expand": "w4",
        "expand_relu": "u4",
        "again": "w4",
        "again_bn": "s8",
        "add": "s8",  # integer sums that can be negative saturate at 8 bits only
        "add > last": "s4",
        "last": "w4",
        "last_relu": "u8",
        **_COARSE_POOL,
    },
    "residual": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u8",
        "a_relu > b": "u4",
        "b": "w4",
        "b_bn": "s8",
        "add_relu": "u8",
        **_COARSE_POOL,
    },
    "sum_of_three": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u8",
        "a_relu > b c": "u4",  # one quantizer for both readers
        "b": "w4* s8",
        "c": "w4",
        "c_bn": "s8",
        "add": "s8",
        **_COARSE_STREAM,
    },
    "branches": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u8",
        "a_relu > b c": "u4",
        "b": "w4",  # what only the concatenation reads has its grid
        "c": "w4",
        "joined": "s8",
        "joined > d": "s4",
        "d": "w4",
        "d_relu": "u8",
        **_COARSE_POOL,
    },
    "average_pool_of_a_stream": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w4* s8",
        "pool": "s8",
        "flatten > classifier": "s4",
        "classifier": "w8* o",
    },
    "max_pool_between": {
        "image > a": "image",
        "a": "w8* s4",  # the pool passes codes on to the convolution behind it
        "b": "w4* s8",
        "b_relu": "u8",
        **_COARSE_POOL,
    },
    "rectified_before_normalization": {
        "image > a": "image",
        "a": "w8* u8",
        "a_bn": "s4",
        "b": "w4* s8",
        **_COARSE_STREAM,
    },
}

# As above, but streams stay float: where integer kernels make them, their range is observed.
PAPER = {
    "plain": {**REQUANTIZED["plain"], "b_relu": "o"},
    "mobile_block": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "project": "w4",
        "project_bn": "o",
        "project_bn > expand": "s4",
        "expand": "w4",
        "expand_relu": "u4",
        "again": "w4",
        "again_bn": "o",
        "add > last": "s4",
        "last": "w4",
        "last_relu": "o",
        **_COARSE_POOL,
    },
    "preactivation": {
        "image > stem": "image",
        "stem": "w8* o",
        "a_relu": "u4",
        "a_conv": "w4* o",
        "b_relu": "u4",
        "b_conv": "w4* o",
        "last_relu": "o",
        **_COARSE_POOL,
    },
    "residual": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "o",
        "a_relu > b": "u4",
        "b": "w4",
        "b_bn": "o",
        "add_relu": "o",
        **_COARSE_POOL,
    },
    "average_pool_of_a_stream": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "u4",
        "b": "w4* o",
        "pool": "o",
        "flatten > classifier": "s4",
        "classifier": "w8* o",
    },
    "max_pool_between": {**REQUANTIZED["max_pool_between"], "b": "w4* o", "b_relu": "o"},
    "two_dense": MOBILE["two_dense"],
    "branches": {
        "image > a": "image",
        "a": "w8",
        "a_relu": "o",
        "a_relu > b c": "u4",
        "b": "w4",
        "b_relu": "o",
        "c": "w4",
        "c_bn": "o",
        "joined > d": "s4",
        "d": "w4",
        "d_relu": "o",
        **_COARSE_POOL,
    },
    "rectified_branches": {
        **MOBILE["rectified_branches"],
        "c_relu": "o",
        "d_relu": "o",
        **_COARSE_POOL,
    },
}
