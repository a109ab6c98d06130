"""All functions of `keras.ops` and all layers of Keras 3: a call of each, and what becomes of it.

A function or layer is integer in the file, or one of the sets below says what it is.
"""

import keras
import numpy as np

A, L, ops = keras.activations, keras.layers, keras.ops
IMAGE, ROWS, NUMBERS, MATRIX, VOLUME = (8, 8, 4), (8, 4), (8,), (4, 4), (4, 4, 4, 2)
PICTURE, SOUND, IDS = (16, 16, 3), (256,), ((8,), "int32")
_MAP = np.float32([[[0, 0], [0, 7], [7, 0], [7, 7]]])


def _by_name(names, *given, **options):
    """The functions of `keras.ops` of these names, on one shape for each tensor."""
    return {
        name: (given, lambda *tensors, name=name: getattr(ops, name)(*tensors, **options))
        for name in names.split()
    }


def _call(function, *given, **options):
    return given, lambda *tensors: function(*tensors, **options)


def _kernel(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _names(names):
    return frozenset(names.split())


# What makes no tensor of other tensors' values, and is no part of a model.
WITHOUT_TENSORS = _names(
    """arange bartlett blackman convert_to_numpy custom_gradient dtype empty eye full geomspace
    hamming hanning identity is_tensor kaiser linspace logspace ndim ones shape size tri zeros"""
)
OPERATIONS = {
    **_by_name(
        """abs absolute angle arccos arccosh arcsin arcsinh arctan arctanh argsort array cbrt
        ceil celu conj conjugate convert_to_tensor copy cos cosh deg2rad diff elu empty_like
        erf erfc erfinv exp exp2 expm1 fabs floor gelu glu hard_shrink hard_sigmoid
        hard_silu hard_swish hard_tanh i0 imag isfinite isinf isnan isneginf isposinf isreal
        layer_normalization leaky_relu log log10 log1p log2 log_sigmoid log_softmax
        nan_to_num negative normalize ones_like rad2deg real reciprocal relu relu6
        rms_normalization round rsqrt selu sigmoid sign signbit silu sin sinc sinh
        soft_shrink softmax softplus softsign sort sparse_plus sparse_sigmoid sparsemax sqrt
        square squareplus stop_gradient swish tan tanh tanh_shrink trunc view zeros_like""",
        NUMBERS,
    ),
    **_by_name(
        """all amax amin any argmax argmin average count_nonzero cumprod cumsum flip logsumexp
        max mean median min nanargmax nanargmin nancumprod nancumsum nanmax nanmean
        nanmedian nanmin nanprod nanstd nansum nanvar norm prod ptp std sum trapezoid var""",
        NUMBERS,
        axis=-1,
    ),
    **_by_name(
        """add allclose append arctan2 binary_crossentropy categorical_crossentropy cdist
        divide divide_no_nan equal floor_divide fmax fmin fmod greater greater_equal
        heaviside hypot inner isclose isin kron less less_equal logaddexp logaddexp2
        logical_and logical_or logical_xor maximum minimum mod multiply nextafter not_equal
        outer power subtract true_divide vdot""",
        NUMBERS,
        NUMBERS,
    ),
    **_by_name(
        """bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm
        left_shift right_shift""",
        IDS,
        IDS,
    ),
    **_by_name("bitwise_invert bitwise_not", IDS),
    **_by_name(
        """corrcoef det eigh fliplr flipud inv logdet lu_factor matrix_rank pinv qr ravel rot90
        slogdet svd tril triu""",
        MATRIX,
    ),
    **_by_name("hsplit vsplit", ROWS, indices_or_sections=2),
    **_by_name("nanpercentile percentile", NUMBERS, q=30.0, axis=-1),
    **_by_name("nanquantile quantile", NUMBERS, q=0.3, axis=-1),
    **_by_name("adaptive_average_pool adaptive_max_pool", IMAGE, output_size=(4, 4)),
    **_by_name("average_pool max_pool", IMAGE, pool_size=2),
    **_by_name(
        "segment_max segment_min segment_prod segment_sum", NUMBERS, ((), "int32"), num_segments=256
    ),
    **_by_name("diagonal trace", MATRIX, axis1=1, axis2=2),
    "argpartition": _call(ops.argpartition, NUMBERS, kth=2),
    "array_split": _call(ops.array_split, NUMBERS, indices_or_sections=3, axis=1),
    "associative_scan": _call(
        lambda x: ops.associative_scan(lambda a, b: a + b, x, axis=1), NUMBERS
    ),
    "batch_normalization": _call(
        lambda x: ops.batch_normalization(x, _kernel(8), np.ones(8, np.float32), axis=-1), NUMBERS
    ),
    "bincount": _call(ops.bincount, IDS, minlength=4),
    "broadcast_to": _call(lambda x: ops.broadcast_to(x, (2, 8)), NUMBERS),
    "cast": _call(ops.cast, NUMBERS, dtype="int32"),
    "cholesky": _call(
        lambda x: ops.cholesky(
            ops.matmul(x, ops.transpose(x, (0, 2, 1))) + 9 * np.eye(4, dtype="float32")
        ),
        MATRIX,
    ),
    "cholesky_inverse": _call(
        lambda x: ops.cholesky_inverse(x + 999 * np.eye(4, dtype="float32")), MATRIX
    ),
    "clip": _call(ops.clip, NUMBERS, x_min=-1.0, x_max=2.0),
    "concatenate": _call(lambda x, y: ops.concatenate([x, y], axis=-1), NUMBERS, NUMBERS),
    "cond": _call(lambda x: ops.cond(ops.max(x) > 0, lambda: 1.0, lambda: 2.0), NUMBERS),
    "conv": _call(lambda x: ops.conv(x, _kernel(3, 3, 4, 2)), IMAGE),
    "conv_transpose": _call(lambda x: ops.conv_transpose(x, _kernel(3, 3, 2, 4)), IMAGE),
    "correlate": _call(lambda x: ops.correlate(x[0], _kernel(3)), NUMBERS),
    "cross": _call(ops.cross, (3,), (3,)),
    "ctc_decode": _call(ops.ctc_decode, ROWS, ((), "int32")),
    "ctc_loss": _call(ops.ctc_loss, ((2,), "int32"), ROWS, ((), "int32"), ((), "int32")),
    "cumsum": _call(ops.cumsum, NUMBERS, axis=-1),
    "depth_to_space": _call(ops.depth_to_space, IMAGE, block_size=2),
    "depthwise_conv": _call(lambda x: ops.depthwise_conv(x, _kernel(3, 3, 4, 1)), IMAGE),
    "diag": _call(lambda x: ops.diag(x), NUMBERS),
    "diagflat": _call(lambda x: ops.diagflat(x), NUMBERS),
    "digitize": _call(lambda x: ops.digitize(x, np.float32([0.0, 1.0])), NUMBERS),
    "dot": _call(lambda x: ops.dot(x, _kernel(8, 2)), NUMBERS),
    "dot_product_attention": _call(ops.dot_product_attention, *3 * [(8, 2, 4)]),
    "dsplit": _call(ops.dsplit, IMAGE, indices_or_sections=2),
    "dstack": _call(lambda x, y: ops.dstack([x, y]), ROWS, ROWS),
    "eig": _call(lambda x: ops.abs(ops.eig(x)[0]), MATRIX),
    "einsum": _call(lambda x, y: ops.einsum("btc,bsc->bts", x, y), ROWS, ROWS),
    "expand_dims": _call(ops.expand_dims, NUMBERS, axis=-1),
    "extract_sequences": _call(
        ops.extract_sequences, SOUND, sequence_length=64, sequence_stride=32
    ),
    "fft": _call(lambda x, y: ops.fft((x, y)), NUMBERS, NUMBERS),
    "fft2": _call(lambda x, y: ops.fft2((x, y)), MATRIX, MATRIX),
    "fold": _call(ops.fold, (4, 16), output_size=(8, 8), kernel_size=(2, 2), stride=2),
    "fori_loop": _call(lambda x: ops.fori_loop(0, 2, lambda i, v: v + 1.0, x), NUMBERS),
    "full_like": _call(ops.full_like, NUMBERS, fill_value=2.0),
    "get_item": _call(lambda x: x[:, 1:], NUMBERS),
    "histogram": _call(ops.histogram, NUMBERS),
    "hstack": _call(lambda x, y: ops.hstack([x, y]), ROWS, ROWS),
    "ifft2": _call(lambda x, y: ops.ifft2((x, y)), MATRIX, MATRIX),
    "in_top_k": _call(ops.in_top_k, ((), "int32"), NUMBERS, k=2),
    "irfft": _call(lambda x, y: ops.irfft((x, y)), NUMBERS, NUMBERS),
    "istft": _call(lambda x, y: ops.istft((x, y), 16, 8, 16), (8, 9), (8, 9)),
    "jvp": _call(lambda x: ops.jvp(ops.sin, (x,), (x,)), NUMBERS),
    "ldexp": _call(ops.ldexp, NUMBERS, IDS),
    "logical_not": _call(ops.logical_not, ((8,), "bool")),
    "lstsq": _call(lambda x: ops.lstsq(x[0], _kernel(4)), MATRIX),
    "map": _call(lambda x: ops.map(lambda v: v + 1.0, x), NUMBERS),
    "matmul": _call(ops.matmul, MATRIX, MATRIX),
    "meshgrid": _call(lambda x: ops.meshgrid(x, np.float32([1.0, 2.0])), NUMBERS),
    "moments": _call(ops.moments, NUMBERS, axes=(1,)),
    "moveaxis": _call(ops.moveaxis, ROWS, source=1, destination=2),
    "multi_hot": _call(ops.multi_hot, IDS, num_classes=4),
    "nonzero": _call(ops.nonzero, NUMBERS),
    "one_hot": _call(ops.one_hot, IDS, num_classes=4),
    "pad": _call(lambda x: ops.pad(x, ((0, 0), (1, 1), (0, 0))), ROWS),
    "polar": _call(lambda x, y: ops.real(ops.polar(x, y)), NUMBERS, NUMBERS),
    "psnr": _call(ops.psnr, IMAGE, IMAGE, max_val=1.0),
    "rearrange": _call(lambda x: ops.rearrange(x, "b h w c -> b h (w c)"), IMAGE),
    "repeat": _call(ops.repeat, ROWS, repeats=2, axis=1),
    "reshape": _call(ops.reshape, IMAGE, newshape=(-1, 64, 4)),
    "rfft": _call(ops.rfft, NUMBERS),
    "roll": _call(ops.roll, ROWS, shift=1, axis=1),
    "saturate_cast": _call(ops.saturate_cast, NUMBERS, dtype="uint8"),
    "scan": _call(lambda x: ops.scan(lambda c, v: (c + v, v), x[0], x), NUMBERS),
    "scatter": _call(lambda x: ops.scatter(np.int32([[0], [2]]), x[0], (4,)), (2,)),
    "scatter_update": _call(
        lambda x: ops.scatter_update(x, np.int32([[0, 0]]), np.float32([1.0])), NUMBERS
    ),
    "searchsorted": _call(lambda x: ops.searchsorted(np.float32([0.0, 1.0]), x[0]), NUMBERS),
    "select": _call(lambda c, x: ops.select([c], [x], 0.0), ((8,), "bool"), NUMBERS),
    "separable_conv": _call(
        lambda x: ops.separable_conv(x, _kernel(3, 3, 4, 1), _kernel(1, 1, 4, 2)), IMAGE
    ),
    "slice": _call(lambda x: ops.slice(x, (0, 1, 0), (1, 4, 4)), ROWS),
    "slice_update": _call(lambda x: ops.slice_update(x, (0, 0), _kernel(1, 2)), NUMBERS),
    "solve": _call(lambda x: ops.solve(x + 999 * np.eye(4, dtype="float32"), x), MATRIX),
    "solve_triangular": _call(
        lambda x: ops.solve_triangular(x + 999 * np.eye(4, dtype="float32"), x), MATRIX
    ),
    "space_to_depth": _call(ops.space_to_depth, IMAGE, block_size=2),
    "sparse_categorical_crossentropy": _call(
        lambda x: ops.sparse_categorical_crossentropy(ops.zeros_like(x[:, 0], "int32"), x), NUMBERS
    ),
    "split": _call(ops.split, NUMBERS, indices_or_sections=2, axis=-1),
    "squeeze": _call(ops.squeeze, (8, 1), axis=-1),
    "stack": _call(lambda x, y: ops.stack([x, y], axis=-1), NUMBERS, NUMBERS),
    "stft": _call(ops.stft, SOUND, sequence_length=64, sequence_stride=32, fft_length=64),
    "swapaxes": _call(ops.swapaxes, ROWS, axis1=1, axis2=2),
    "switch": _call(
        lambda x, i: ops.switch(ops.max(i), [lambda v: v, lambda v: -v], x), NUMBERS, IDS
    ),
    "take": _call(lambda x: ops.take(x, np.int32([0, 2]), axis=1), NUMBERS),
    "take_along_axis": _call(lambda x: ops.take_along_axis(x, ops.argsort(x), axis=-1), NUMBERS),
    "tensordot": _call(lambda x: ops.tensordot(x, _kernel(4, 2), axes=1), ROWS),
    "threshold": _call(ops.threshold, NUMBERS, threshold=0.5, default_value=0.0),
    "tile": _call(ops.tile, ROWS, repeats=(1, 2, 1)),
    "top_k": _call(ops.top_k, NUMBERS, k=2),
    "transpose": _call(ops.transpose, ROWS, axes=(0, 2, 1)),
    "unfold": _call(ops.unfold, (4, 8, 8), kernel_size=2),
    "unique": _call(ops.unique, NUMBERS),
    "unravel_index": _call(lambda x: ops.unravel_index(x, (400, 4)), IDS),
    "unstack": _call(ops.unstack, ROWS, axis=1),
    "vander": _call(lambda x: ops.vander(x[0], N=3), NUMBERS),
    "vectorize": _call(lambda x: ops.vectorize(lambda v: v + 1.0)(x), NUMBERS),
    "vectorized_map": _call(lambda x: ops.vectorized_map(lambda v: v + 1.0, x), NUMBERS),
    "view_as_complex": _call(ops.view_as_complex, (8, 2)),
    "view_as_real": _call(lambda x, y: ops.view_as_real(ops.polar(x, y)), NUMBERS, NUMBERS),
    "vstack": _call(lambda x, y: ops.vstack([x, y]), ROWS, ROWS),
    "where": _call(ops.where, ((8,), "bool"), NUMBERS, NUMBERS),
    "while_loop": _call(
        lambda x: ops.while_loop(lambda v: ops.max(v) < 3.0, lambda v: v + 1.0, (x,)), NUMBERS
    ),
    "image.affine_transform": _call(
        lambda x: ops.image.affine_transform(x, np.float32([1, 0, 1, 0, 1, 0, 0, 0])), IMAGE
    ),
    "image.crop_images": _call(
        ops.image.crop_images,
        IMAGE,
        top_cropping=1,
        left_cropping=1,
        target_height=4,
        target_width=4,
    ),
    "image.elastic_transform": _call(ops.image.elastic_transform, IMAGE, seed=1),
    "image.extract_patches": _call(ops.image.extract_patches, IMAGE, size=(2, 2)),
    "image.extract_patches_3d": _call(ops.image.extract_patches_3d, VOLUME, size=2),
    "image.gaussian_blur": _call(ops.image.gaussian_blur, IMAGE),
    "image.hsv_to_rgb": _call(ops.image.hsv_to_rgb, PICTURE),
    "image.map_coordinates": _call(
        lambda x: ops.image.map_coordinates(x[0], np.float32([[0.0, 1.0]]), 1), NUMBERS
    ),
    "image.pad_images": _call(
        ops.image.pad_images,
        IMAGE,
        top_padding=1,
        left_padding=1,
        bottom_padding=1,
        right_padding=1,
    ),
    "image.perspective_transform": _call(
        lambda x: ops.image.perspective_transform(x, _MAP, _MAP), (8, 8, 4)
    ),
    "image.resize": _call(ops.image.resize, IMAGE, size=(4, 4)),
    "image.rgb_to_grayscale": _call(ops.image.rgb_to_grayscale, PICTURE),
    "image.rgb_to_hsv": _call(ops.image.rgb_to_hsv, PICTURE),
    "image.scale_and_translate": _call(
        lambda x: ops.image.scale_and_translate(
            x, (1, 4, 4, 4), np.float32([0.5, 0.5]), np.float32([0, 0]), (1, 2), "linear"
        ),
        IMAGE,
    ),
    "image.sobel_edges": _call(ops.image.sobel_edges, IMAGE),
    "image.ssim": _call(ops.image.ssim, (16, 16, 1), (16, 16, 1), max_val=1.0),
}
AUGMENTATION = {
    **dict.fromkeys(
        _names(
            """AugMix CutMix MixUp RandAugment RandomColorJitter RandomElasticTransform
            RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomInvert
            RandomPerspective Solarization"""
        ),
        (),
    ),
    "Pipeline": ([L.RandomFlip()],),
    **dict.fromkeys(
        _names(
            """RandomBrightness RandomColorDegeneration RandomContrast RandomHue RandomRotation
            RandomSaturation RandomSharpness RandomZoom"""
        ),
        (0.1,),
    ),
    "RandomCrop": (12, 12),
    "RandomPosterization": (4,),
    "RandomShear": ((0.0, 0.1),),
    "RandomTranslation": (0.1, 0.1),
}


NOISE = _names("ActivityRegularization AlphaDropout Dropout GaussianDropout GaussianNoise")


def _layer(name, *given, arguments=(), **settings):
    return given, lambda *tensors: getattr(L, name)(*arguments, **settings)(*tensors)


def _of_list(name, *given, **settings):
    return given, lambda *tensors: getattr(L, name)(**settings)(list(tensors))


def _in_ranks(name, *arguments, ranks=(ROWS, IMAGE, VOLUME)):
    """The layers of one, two and three dimensions of a name such as "Conv{}D"."""
    return {
        name.format(rank): _layer(name.format(rank), shape, arguments=arguments)
        for rank, shape in enumerate(ranks, 1)
    }


LAYERS = {
    **{name: _layer(name, PICTURE, arguments=given) for name, given in AUGMENTATION.items()},
    **{
        name: _layer(name, PICTURE)
        for name in ("AutoContrast", "ContrastLimitedAdaptiveHistogramEqualization", "Equalization")
    },
    **_in_ranks("AdaptiveAveragePooling{}D", 2),
    **_in_ranks("AdaptiveMaxPooling{}D", 2),
    **_in_ranks("AveragePooling{}D", 2),
    **_in_ranks("AvgPool{}D", 2),
    **_in_ranks("MaxPooling{}D", 2),
    **_in_ranks("MaxPool{}D", 2),
    **_in_ranks("GlobalAveragePooling{}D"),
    **_in_ranks("GlobalAvgPool{}D"),
    **_in_ranks("GlobalMaxPooling{}D"),
    **_in_ranks("GlobalMaxPool{}D"),
    **_in_ranks("Conv{}D", 2, 3),
    **_in_ranks("Convolution{}D", 2, 3),
    **_in_ranks("Conv{}DTranspose", 2, 3),
    **_in_ranks("Convolution{}DTranspose", 2, 3),
    **_in_ranks("DepthwiseConv{}D", 3, ranks=(ROWS, IMAGE)),
    **_in_ranks("SeparableConv{}D", 2, 3, ranks=(ROWS, IMAGE)),
    **_in_ranks("SeparableConvolution{}D", 2, 3, ranks=(ROWS, IMAGE)),
    **_in_ranks("ConvLSTM{}D", 2, 3, ranks=((2, *ROWS), (2, *IMAGE), (2, *VOLUME))),
    **_in_ranks("Cropping{}D"),
    **_in_ranks("UpSampling{}D"),
    **_in_ranks("ZeroPadding{}D"),
    **_in_ranks("SpatialDropout{}D", 0.1),
    **{
        name: _of_list(name, ROWS, ROWS)
        for name in ["Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply"]
    },
    **{name: _of_list(name, ROWS, ROWS) for name in ["AdditiveAttention", "Attention", "Subtract"]},
    **{name: _layer(name, NUMBERS, arguments=(0.1,)) for name in NOISE},
    **{
        name: _layer(name, NUMBERS)
        for name in _names(
            """BatchNormalization ELU Identity LayerNormalization LeakyReLU PReLU RMSNormalization
            ReLU Softmax UnitNormalization"""
        )
    },
    "Activation": _layer("Activation", NUMBERS, arguments=("tanh",)),
    "Bidirectional": _layer("Bidirectional", ROWS, layer=L.LSTM(3)),
    "CategoryEncoding": _layer("CategoryEncoding", IDS, arguments=(300,)),
    "CenterCrop": _layer("CenterCrop", IMAGE, arguments=(4, 4)),
    "Dense": _layer("Dense", NUMBERS, arguments=(3,)),
    "Discretization": _layer("Discretization", NUMBERS, arguments=([0.0, 1.0],)),
    "Dot": _of_list("Dot", ROWS, ROWS, axes=(2, 2)),
    "EinsumDense": _layer("EinsumDense", ROWS, arguments=("abc,cd->abd", (None, 3))),
    "Embedding": _layer("Embedding", IDS, arguments=(300, 4)),
    "Flatten": _layer("Flatten", IMAGE),
    "GRU": _layer("GRU", ROWS, arguments=(3,)),
    "GRUCell": _call(lambda x, state: L.GRUCell(3)(x, [state]), NUMBERS, (3,)),
    "GroupNormalization": _layer("GroupNormalization", IMAGE, arguments=(2,)),
    "GroupQueryAttention": _layer("GroupQueryAttention", ROWS, ROWS, arguments=(4, 2, 1)),
    "HashedCrossing": _of_list("HashedCrossing", ((1,), "int32"), ((1,), "int32"), num_bins=4),
    "Hashing": _layer("Hashing", IDS, arguments=(4,)),
    "IntegerLookup": _layer("IntegerLookup", IDS, vocabulary=[1, 2, 3]),
    "JaxLayer": _call(lambda x: L.JaxLayer(lambda inputs: inputs * 2.0)(x), NUMBERS),
    "LSTM": _layer("LSTM", ROWS, arguments=(3,)),
    "LSTMCell": _call(lambda x, h, c: L.LSTMCell(3)(x, [h, c]), NUMBERS, (3,), (3,)),
    "Lambda": _call(lambda x: L.Lambda(lambda y: y * 2.0, output_shape=(8,))(x), NUMBERS),
    "Masking": _layer("Masking", ROWS),
    "MelSpectrogram": _layer(
        "MelSpectrogram", SOUND, fft_length=64, sequence_stride=32, num_mel_bins=8, max_freq=4000
    ),
    "MultiHeadAttention": _layer("MultiHeadAttention", ROWS, ROWS, arguments=(2, 4)),
    "Normalization": _layer("Normalization", NUMBERS, mean=0.5, variance=2.0),
    "Permute": _layer("Permute", ROWS, arguments=((2, 1),)),
    "RNN": _call(lambda x: L.RNN(L.GRUCell(3))(x), ROWS),
    "RepeatVector": _layer("RepeatVector", NUMBERS, arguments=(3,)),
    "Rescaling": _layer("Rescaling", NUMBERS, arguments=(0.1,)),
    "Reshape": _layer("Reshape", IMAGE, arguments=((64, 4),)),
    "Resizing": _layer("Resizing", IMAGE, arguments=(4, 4)),
    "ReversibleEmbedding": _layer("ReversibleEmbedding", IDS, arguments=(300, 4)),
    "STFTSpectrogram": _layer("STFTSpectrogram", (256, 1), frame_length=64),
    "SimpleRNN": _layer("SimpleRNN", ROWS, arguments=(3,)),
    "SimpleRNNCell": _call(lambda x, state: L.SimpleRNNCell(3)(x, [state]), NUMBERS, (3,)),
    "SpectralNormalization": _layer("SpectralNormalization", NUMBERS, layer=L.Dense(2)),
    "StackedRNNCells": _call(
        lambda x, state: L.StackedRNNCells([L.GRUCell(3)])(x, [state]), NUMBERS, (3,)
    ),
    "StringLookup": _layer("StringLookup", ((8,), "string"), vocabulary=["a", "b"]),
    "TextVectorization": _layer("TextVectorization", ((1,), "string"), vocabulary=["a", "b"]),
    "TimeDistributed": _layer("TimeDistributed", ROWS, layer=L.Dense(3)),
}
# What is not called on tensors in a model of its own: classes to derive from, inputs, boxes, and
# programs of libraries that may not be there, which are refused like JaxLayer.
NOT_CALLED = _names(
    "FlaxLayer InputLayer Layer MaxNumBoundingBoxes TFSMLayer TorchModuleWrapper Wrapper"
)

INTEGER_OPERATIONS = _names(
    """abs absolute add average_pool clip concatenate depth_to_space elu expand_dims gelu get_item
    hard_sigmoid hard_silu hard_swish leaky_relu log_sigmoid max_pool maximum minimum multiply
    negative pad relu relu6 reshape selu sigmoid silu softmax softplus softsign space_to_depth
    split square squeeze stack subtract swish tanh tanh_shrink transpose image.resize"""
)
INTEGER_LAYERS = _names(
    """Activation Add Average AveragePooling1D AveragePooling2D AvgPool1D AvgPool2D
    BatchNormalization Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Convolution1D
    Convolution1DTranspose Convolution2D Convolution2DTranspose Cropping1D Cropping2D Dense
    DepthwiseConv1D DepthwiseConv2D ELU Flatten GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAvgPool1D GlobalAvgPool2D GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPooling1D
    GlobalMaxPooling2D LayerNormalization LeakyReLU MaxPool1D MaxPool2D MaxPooling1D MaxPooling2D
    Maximum Minimum Multiply Normalization PReLU Permute ReLU RepeatVector Rescaling Reshape
    Resizing SeparableConv1D SeparableConv2D SeparableConvolution1D SeparableConvolution2D Softmax
    Subtract TimeDistributed UpSampling1D UpSampling2D ZeroPadding1D ZeroPadding2D"""
)
# They act in training only.
GONE = {*AUGMENTATION, *NOISE, "stop_gradient", "Identity"} | {
    f"SpatialDropout{rank}D" for rank in (1, 2, 3)
}
_BATCHES, _PYTHON = "Keras 3 itself does not run on batches of any size", "that no file can hold"
_OUTPUTS, _STRINGS = "with several outputs, expected layer", "received an input of string"
# The reasons of those that are not even left float.
REFUSED = {
    **dict.fromkeys(
        _names(
            """conv_transpose corrcoef gcd histogram isin kron lcm lu_factor nanmedian nanpercentile
            nanquantile unfold unravel_index view_as_complex"""
        ),
        _BATCHES,
    ),
    **dict.fromkeys(
        _names("associative_scan fori_loop jvp map scan switch vectorized_map while_loop"), _PYTHON
    ),
    **dict.fromkeys(["GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"], _OUTPUTS),
    **dict.fromkeys(("StringLookup", "TextVectorization"), _STRINGS),
    # TensorFlow's kernels refuse lengths beyond the rows, and the indices that Keras makes.
    **dict.fromkeys(["argpartition", "ctc_decode"], "Keras 3 itself does not run on random input"),
    "JaxLayer": "which holds a program",
    "Lambda": "whose Python code cannot be shown to do the same",
    "Masking": "whose mask tells the layers after it",
}
# Keras does not make a model of these calls.
NOT_BUILT = {"Equalization", "cond", "rearrange", "vectorize"}
