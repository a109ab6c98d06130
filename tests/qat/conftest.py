import numpy as np
import pytest
import tf_keras as keras

from sat_tf.training.data.digits import load_digits
from tests.qat.float_models import L, chain, model_of


@pytest.fixture(scope="session")
def digits():
    return load_digits(16)


@pytest.fixture(scope="module")
def data():
    """Noise of 8x8 pixels, with one of three labels each."""
    draw = np.random.default_rng(0)
    return draw.integers(0, 256, (64, 8, 8, 3)).astype(np.float32), draw.integers(0, 3, 64)


@pytest.fixture(params=["mixed_bfloat16", "mixed_float16"])
def precision(request):
    """A lower precision, in which models are built while a test runs."""
    keras.mixed_precision.set_global_policy(request.param)
    yield request.param
    keras.mixed_precision.set_global_policy(None)  # and not "float32", which no floatx changes


@pytest.fixture(scope="session")
def digits_model(digits):
    """A float model with all kinds of layers, trained for a few seconds: 97 % correct."""
    keras.utils.set_random_seed(0)

    def with_norm(layer):
        return [layer, L.BatchNormalization(momentum=0.9, name=f"{layer.name}_bn")]

    stem = with_norm(L.Conv2D(8, 3, 2, padding="same", use_bias=False, name="stem"))
    branch = [*with_norm(L.DepthwiseConv2D(3, padding="same", name="depthwise")), L.ReLU()]
    branch += with_norm(L.Conv2D(8, 1, use_bias=False, name="project"))
    add = L.Add(name="add")
    layers = [stem, L.ReLU(), lambda tensor: add([tensor, chain(tensor, branch)])]
    layers += [with_norm(L.Conv2D(16, 3, 2, padding="same", name="head")), L.ReLU()]
    layers += [L.Flatten(name="flatten"), L.Dense(10, name="classifier")]
    model = model_of(*layers, shape=(16, 16, 3), name="digits")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    images = digits.train_images.astype(np.float32)
    model.fit(images, digits.train_labels, batch_size=64, epochs=6, verbose=0)
    return model


@pytest.fixture(scope="session")
def correct(digits):
    """Share of the held-out digits that a model recognizes."""
    images = digits.test_images.astype(np.float32)

    def share(model):
        logits = model(images).numpy()
        assert np.isfinite(logits).all()  # NaN would count as right
        return float(np.mean(np.argmax(logits, axis=-1) == digits.test_labels))

    return share
