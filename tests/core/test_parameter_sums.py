import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.core import on_tensorflow
from sat_tf.core.on_tensorflow import sum_by_normalization, sum_by_readers
from sat_tf.training.models import build

layers = keras.layers

# float32 sums in another order differ by this part of the root of the sum of squares.
_ROUNDING = 1e-5


def _draw(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(0.0, 1.0, shape), tf.float32)


def _sum_by_readers(read, shape=(3, 8, 8, 6)):
    """Σ g y by what reads y, None where it is not known; from y and g; size of the terms."""
    known = []

    @tf.custom_gradient
    def watched(y, probe):
        del probe
        made = tf.identity(y)

        def backward(upstream):
            found = sum_by_readers(made, upstream)
            known.append(found is not None)
            return upstream, tf.constant(0.0) if found is None else found

        return made, backward

    @tf.function
    def gradients(y, probe):
        with tf.GradientTape() as tape:
            tape.watch([y, probe])
            made = read(watched(y, probe))
        return tape.gradient(made, [y, probe], _draw(*made.shape, seed=3))

    y = _draw(*shape)
    upstream, found = gradients(y, tf.constant(0.0))
    terms = upstream.numpy().astype(np.float64) * y.numpy()
    return float(found) if known[-1] else None, terms.sum(), np.sqrt(np.sum(terms**2))


def _chain(*parts):
    return lambda y: functools.reduce(lambda made, part: part(made), parts, y)


def _branches(join, *parts):
    return lambda y: join([part(y) for part in parts])


def _conv(filters=4, size=3, **settings):
    return layers.Conv2D(filters, size, **settings)


def _scaling_its_gradient(y):
    @tf.custom_gradient
    def identity(y):
        return tf.identity(y), lambda upstream: upstream / 3.0

    return identity(y)


_SHARED = _conv(padding="same")

# Linear readers, behind what keeps the sum.
KNOWN = {
    "convolution": _conv(),
    "with stride and padding": _conv(strides=2, padding="same"),
    "dilated": _conv(dilation_rate=2),
    "dilated depthwise": layers.DepthwiseConv2D(3, dilation_rate=2, padding="same"),
    "depthwise": layers.DepthwiseConv2D(3, depth_multiplier=2),
    "separable": layers.SeparableConv2D(5, 3),
    "with bias and rectifier": _conv(activation="relu"),
    "dense": _chain(layers.Flatten(), layers.Dense(7)),
    "dense on pixels": layers.Dense(7),
    "padded": _chain(layers.ZeroPadding2D(((0, 1), (2, 0))), layers.DepthwiseConv2D(3, strides=2)),
    "largest of windows": _chain(layers.MaxPooling2D(3, 2, padding="same"), _conv()),
    "mean of windows": _chain(layers.AveragePooling2D(3, 2, padding="same"), _conv()),
    "padded, largest, flat": _chain(
        layers.ZeroPadding2D(1), layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(3)
    ),
    "two, added": _branches(layers.add, _conv(padding="same"), _conv(padding="same")),
    "two of other sizes, added": _branches(
        layers.add, _conv(padding="same"), _conv(size=1), _conv(size=5, padding="same")
    ),
    "two, side by side": _branches(layers.concatenate, _conv(size=1), _conv(padding="same")),
    "two uses of one": _branches(layers.multiply, _SHARED, _chain(_SHARED, layers.ReLU())),
    "with a pooled branch": _branches(
        layers.concatenate,
        _chain(layers.MaxPooling2D(2, 1, padding="same"), _conv(size=1)),
        _chain(layers.AveragePooling2D(3, 1, padding="same"), _conv(size=1)),
        _conv(padding="same", dilation_rate=2),
    ),
}

# Something else has part in the gradient.
UNKNOWN = {
    "itself": lambda y: y,
    "rectifier": _chain(tf.nn.relu, _conv()),
    "product": _chain(lambda y: 2.0 * y, _conv()),
    "itself added": _branches(layers.add, _conv(6, padding="same"), lambda y: y),
    "itself beside": _branches(layers.concatenate, _conv(padding="same"), lambda y: y),
    "shifted": _chain(lambda y: y + 1.0, _conv()),
    "its square": _branches(layers.add, _conv(6, padding="same"), tf.square),
    "mean": _chain(layers.GlobalAveragePooling2D(), layers.Dense(3)),
    "grouped, which Keras compiles with XLA": _conv(groups=2),
    "transposed": layers.Conv2DTranspose(4, 3),
    "a part": _chain(lambda y: y[:, 1:], _conv()),
    "a gradient that is scaled": _chain(_scaling_its_gradient, _conv()),
    "a gradient that is scaled behind": _chain(
        layers.MaxPooling2D(2), _scaling_its_gradient, _conv()
    ),
    "a weight": lambda y: tf.matmul(_draw(3, 8, seed=5), tf.reshape(y, [8, -1])),
    "resized": _chain(layers.UpSampling2D(2), _conv()),
}


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_linear_readers_alone_know_the_sum(name):
    found, expected, size = _sum_by_readers((KNOWN | UNKNOWN)[name])
    wanted = pytest.approx(expected, abs=_ROUNDING * size) if name in KNOWN else None
    assert found == wanted


def test_a_gradient_of_y_itself_is_not_forgotten():
    """There are two targets, one of them y itself: part of its gradient comes from no layer."""
    conv = _conv()
    found = []

    @tf.function
    def run(y):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(y)
            made = tf.identity(y)
            read = conv(made)
        upstream = tape.gradient([read, made], made)
        found.append(sum_by_readers(made, upstream))
        found.append(sum_by_readers(made, tape.gradient(read, made)))
        return upstream

    run(_draw(2, 8, 8, 6))
    assert found[0] is None
    assert found[1] is not None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("settings", [{}, {"scale": False}, {"center": False}])
def test_batch_normalization_knows_the_sum(training, settings):
    norm = layers.BatchNormalization(**settings)
    norm.build((None, 6, 6, 5))
    for index, variable in enumerate(norm.variables):
        variable.assign(tf.abs(_draw(5, seed=index)) + 0.5)
    upstream = _draw(4, 6, 6, 5, seed=9)

    @tf.function
    def run(x, upstream):
        y = norm(x, training=training)
        return sum_by_normalization(y, upstream), y

    found, y = run(_draw(4, 6, 6, 5), upstream)
    terms = upstream.numpy().astype(np.float64) * y.numpy()
    assert float(found) == pytest.approx(terms.sum(), abs=_ROUNDING * np.sqrt(np.sum(terms**2)))


def test_what_is_read_twice_is_not_asked_of_batch_normalization():
    norm = layers.BatchNormalization()

    @tf.function
    def known(x):
        y = norm(x, training=True)
        copy, other = tf.identity(y), tf.identity(y)
        twice = sum_by_normalization(copy, copy) is not None
        return tf.constant(twice), tf.constant(sum_by_normalization(x, x) is not None), other

    y = _draw(4, 6, 6, 5)
    twice, without_norm, _ = known(y)
    assert not twice
    assert not without_norm
    assert sum_by_readers(y, y) is sum_by_normalization(y, y) is None  # it has no graph


# How many of the activations of each know the sum by their readers, and by BatchNormalization.
FAMILIES = [
    ("mobilenet_v1", "mobile", (27, 27)),
    ("mobilenet_v2", "paper", (52, 36)),
    ("resnet18", "paper", (17, 8)),
    # Convolutions read ten streams that an addition reads, too, of which no kernel tells the sum.
    pytest.param("mobilenet_v2", "mobile", (42, 52), marks=pytest.mark.slow),
    pytest.param("preresnet50", "paper", (49, 48), marks=pytest.mark.slow),
    pytest.param("resnet50", "paper", (49, 33), marks=pytest.mark.slow),
    pytest.param("vgg16_bn", "paper", (15, 13), marks=pytest.mark.slow),
]


def _gradients(name, policy):
    """The gradients of one step of a quantized network, by the names of its variables."""
    keras.utils.set_random_seed(0)
    model = build(name, image_size=32, num_classes=10)
    quantized = sat_tf.quantize_model(model, getattr(sat_tf.BitPolicy, policy)(4))
    variables = quantized.trainable_variables

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            logits = quantized(images, training=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits([1, 5, 2, 7], logits)
        return tape.gradient(loss, variables)

    gradients = step(40.0 * _draw(4, 32, 32, 3) + 120.0)
    return {
        each.name: gradient.numpy() for each, gradient in zip(variables, gradients, strict=True)
    }


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "policy", "expected"), FAMILIES)
def test_gradients_of_clipping_levels_are_those_of_the_direct_form(
    name, policy, expected, monkeypatch
):
    known = collections.Counter()

    def counted(of, tensor, upstream):
        found = of(tensor, upstream)
        known[of.__name__] += found is not None
        return found

    both = (sum_by_readers, sum_by_normalization)
    for of in both:
        monkeypatch.setattr(on_tensorflow, of.__name__, functools.partial(counted, of))
    found = _gradients(name, policy)
    for of in both:
        monkeypatch.setattr(on_tensorflow, of.__name__, lambda y, upstream: None)
    direct = _gradients(name, policy)
    for variable, gradient in direct.items():
        if "clipping_level" not in variable:
            np.testing.assert_array_equal(found[variable], gradient)
    levels = [variable for variable in direct if "clipping_level" in variable]
    ours, theirs = (np.array([of[level] for level in levels]) for of in (found, direct))
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())
    assert (known["sum_by_readers"], known["sum_by_normalization"]) == expected
