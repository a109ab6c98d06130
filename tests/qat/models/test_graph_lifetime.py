"""A process that trains again and again keeps nothing of what it is done with."""

import gc
import pathlib
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import graphs_go_with
from tests.qat import float_models

MEBIBYTES = 300


def _registered():
    from tensorflow.python.framework import ops

    return set(ops.gradient_registry.list())


def _trained(name="dropout", **options):
    """A model after a plain `fit`, and the graph of its step."""
    model = sat_tf.quantize_model(float_models.build(name), BitPolicy.mobile(4))
    images = float_models.images(8)
    model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), "mse", **options)
    model.fit(images, np.zeros((8, *model.output_shape[1:])), batch_size=4, verbose=0)
    *_, step = model.train_function._list_all_concrete_functions()
    return model, weakref.ref(step.graph)


def _collect():
    keras.backend.clear_session()
    # A first pass frees a graph, among others, which lets go of more.
    gc.collect()
    gc.collect()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"jit_compile": True}], ids=["plain", "xla"])
def test_the_graph_of_a_step_goes_with_its_model(options):
    model, graph = _trained(**options)
    before = _registered()
    assert graph() is not None
    del model
    _collect()
    assert graph() is None
    for _ in range(2):
        model, graph = _trained(**options)
        del model
        _collect()
    assert not {name for name in _registered() - before if name.startswith("sat_tf")}
    assert len(_registered()) <= len(before)


@pytest.mark.thorough
def test_a_living_model_keeps_its_gradients():
    class Squared(keras.layers.Layer):
        def call(self, inputs):
            return tf.custom_gradient(lambda x: (x * x, lambda upstream: upstream * 7.0))(inputs)

    owner, layer = Squared(), Squared()

    @tf.function
    def function(x):
        graphs_go_with(owner)
        return layer(x)

    x = tf.constant(2.0)
    function(x)
    _collect()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert tape.gradient(y, x) == 7.0


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="asks Linux")
def test_fifty_trainings_take_little_more_memory_than_one():
    sizes = []
    for _ in range(50):
        _trained("mobile_block")
        _collect()
        status = pathlib.Path("/proc/self/status").read_text().splitlines()
        (resident,) = [line.split()[1] for line in status if line.startswith("VmRSS")]
        sizes.append(int(resident) // 1024)
    assert max(sizes) <= sizes[0] + MEBIBYTES, sizes
