import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.top_k import top_hits
from sat_tf.qat.layout import inner_layer
from sat_tf.training.data.source import NO_LABEL
from sat_tf.training.learner import Learner, TopK, training_copy
from tests.training.small import small_float_model, small_images, small_quantized_model

Top1, Top5 = functools.partial(TopK, 1), functools.partial(TopK, 5)

# -- a step ----------------------------------------------------------------------------------------

IMAGES = small_images()


def learner_of(model, batch_size, rate=0.1):
    learner = Learner(model, batch_size=batch_size)
    learner.compile(optimizer=keras.optimizers.SGD(rate))
    return learner


@pytest.mark.thorough
def test_images_without_a_label_count_for_nothing():
    start = small_quantized_model()
    pixels, labels = IMAGES.train_images[:12], IMAGES.train_labels[:12].copy()
    labels[3:6] = NO_LABEL
    plain, trained = training_copy(start), training_copy(start)
    with tf.GradientTape() as tape:
        logits = plain(pixels.astype(np.float32), training=True)
        known = labels >= 0
        loss = tf.reduce_sum(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels[known], logits[known])
        )
        of_batch = loss / 12
    gradients = tape.gradient(of_batch, plain.trainable_variables)
    logs = learner_of(trained, 12).train_on_batch(pixels, labels, return_dict=True)
    assert logs["batch_loss"] == pytest.approx(float(loss) / 12, rel=1e-6)
    assert logs["loss"] == pytest.approx(float(loss) / 9, rel=1e-6)
    assert logs["data_loss"] == logs["loss"]
    hits = np.argmax(logits.numpy()[known], axis=1) == labels[known]
    assert logs["top1"] == pytest.approx(np.mean(hits))
    for before, after, gradient in zip(
        plain.trainable_variables, trained.trainable_variables, gradients, strict=True
    ):
        np.testing.assert_allclose(after, before - 0.1 * gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_the_loss_of_the_images_is_the_whole_one_without_weight_decay():
    model = training_copy(small_quantized_model(), weight_decay=0.01)
    penalty = float(tf.add_n(model.losses))
    batch = IMAGES.train_images[:8], IMAGES.train_labels[:8]
    learner = learner_of(model, 8)
    logs = learner.train_on_batch(*batch, return_dict=True)
    assert penalty > 0.01
    assert logs["loss"] - logs["data_loss"] == pytest.approx(penalty, rel=1e-3)
    assert set(learner.test_on_batch(*batch, return_dict=True)) == {"loss", "top1"}


@pytest.mark.thorough
def test_a_loss_that_is_no_number_leaves_the_variables_as_they_were():
    model = training_copy(small_quantized_model())
    kernel = model.get_layer("quant_classifier").layer.kernel
    kernel.assign(tf.tensor_scatter_nd_update(kernel, [[0, 0]], [np.nan]))
    before = [variable.numpy() for variable in model.trainable_variables]
    learner = learner_of(model, 8)
    logs = learner.train_on_batch(
        IMAGES.train_images[:8], IMAGES.train_labels[:8], return_dict=True
    )
    assert np.isnan(logs["batch_loss"])
    for old, new in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.thorough
def test_a_compiled_step_does_what_an_ordinary_one_does():
    def losses(jit_compile):
        learner = Learner(training_copy(small_quantized_model(), weight_decay=0.1), batch_size=8)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        learner.compile(optimizer=optimizer, jit_compile=jit_compile)
        parts = [slice(start, start + 8) for start in range(0, 48, 8)]
        return [
            learner.train_on_batch(
                IMAGES.train_images[part], IMAGES.train_labels[part], return_dict=True
            )["batch_loss"]
            for part in parts
        ]

    # The compiler adds in another order, in float32, and a code may flip in between.
    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-3)


# -- the model that is trained ---------------------------------------------------------------------

DECAYING = ("stem", "pointwise", "classifier")


def inner(model):
    return {inner_layer(layer).name: inner_layer(layer) for layer in model.layers}


@pytest.mark.parametrize("make", [small_float_model, small_quantized_model])
def test_conv_and_dense_kernels_alone_decay_by_half_of_it_times_their_squares(make):
    model = training_copy(make(), weight_decay=0.3)
    model(small_images().train_images[:2].astype(np.float32), training=True)
    kernels = [inner(model)[name].kernel.numpy().astype(np.float64) for name in DECAYING]
    expected = 0.15 * sum(np.sum(np.square(kernel)) for kernel in kernels)
    assert len(model.losses) == len(DECAYING)
    with tf.GradientTape() as tape:
        decay = tf.add_n(model.losses)
    assert float(decay) == pytest.approx(expected, rel=1e-6)
    gradients = tape.gradient(decay, model.trainable_variables)
    decaying = {id(inner(model)[name].kernel) for name in DECAYING}
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        if id(variable) in decaying:
            np.testing.assert_allclose(gradient, 0.3 * variable.numpy(), rtol=1e-6)
        else:
            assert gradient is None, variable.name
    others = [v.name for v in model.trainable_variables if id(v) not in decaying]
    kinds = {"depthwise_kernel", "gamma", "beta", "bias"}
    kinds |= {"clipping_level"} if make is small_quantized_model else set()
    for kind in kinds:
        assert any(kind in name for name in others)


def test_separable_convolutions_decay_in_their_pointwise_part_alone():
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, keras.layers.SeparableConv2D(4, 3, name="separable")(images))
    decaying = training_copy(model, weight_decay=0.2)
    kernel = decaying.get_layer("separable").pointwise_kernel.numpy()
    assert len(decaying.losses) == 1
    assert float(decaying.losses[0]) == pytest.approx(0.1 * np.sum(np.square(kernel)), rel=1e-6)


def test_the_copy_computes_the_same_and_the_original_is_left_alone():
    model = small_quantized_model()
    copy = training_copy(model, weight_decay=0.1)
    images = small_images().test_images.astype(np.float32)
    np.testing.assert_array_equal(copy(images, training=False), model(images, training=False))
    assert not model.losses
    copy.get_layer("quant_stem").layer.kernel.assign_add(
        tf.ones_like(copy.get_layer("quant_stem").layer.kernel)
    )
    assert not np.array_equal(
        copy.get_layer("quant_stem").layer.kernel, model.get_layer("quant_stem").layer.kernel
    )


def test_another_decay_replaces_the_one_before():
    model = training_copy(small_quantized_model(), weight_decay=0.1)
    assert not training_copy(model).losses
    doubled = training_copy(model, weight_decay=0.2)
    assert float(tf.add_n(doubled.losses)) == pytest.approx(2 * float(tf.add_n(model.losses)))


def test_the_decay_is_saved_and_loaded_with_the_model(tmp_path):
    model = training_copy(small_quantized_model(), weight_decay=0.1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert float(tf.add_n(loaded.losses)) == pytest.approx(float(tf.add_n(model.losses)))


# -- top-1 and top-5 -------------------------------------------------------------------------------

LOGITS = np.float32([[3, 1, 2], [0, 0.5, 0.2], [1, 2, 3], [9, 8, 7]])


def test_top1_counts_over_batches_and_starts_over_after_a_reset():
    metric = Top1()
    metric.update_state([0, 1], LOGITS[:2])
    metric.update_state([0], LOGITS[3:])
    metric.update_state([0], LOGITS[2:3])
    assert float(metric.result()) == 0.75
    metric.reset_state()
    assert float(metric.result()) == 0.0
    metric.update_state([2], LOGITS[2:3])
    assert float(metric.result()) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_logit_that_is_not_finite_makes_top1_nan(bad):
    logits = LOGITS.copy()
    logits[1, 2] = bad
    metric = Top1()
    metric.update_state([0, 1, 2, 0], logits)
    assert math.isnan(float(metric.result()))
    metric.update_state([0, 1, 2, 0], LOGITS)
    assert math.isnan(float(metric.result()))


def test_top1_works_with_half_precision_logits_and_metrics_are_serializable():
    metric = keras.metrics.deserialize(keras.metrics.serialize(Top1(name="first")))
    metric.update_state(tf.constant([0, 1, 2, 2]), tf.constant(LOGITS, tf.float16))
    assert metric.name == "first"
    assert float(metric.result()) == 0.75
    metric = keras.metrics.deserialize(keras.metrics.serialize(TopK(3, name="third")))
    assert (metric.k, metric.name) == (3, "third")


def test_the_logits_of_training_and_the_codes_of_a_file_are_counted_as_by_sorting_them():
    generator = np.random.RandomState(0)
    codes = generator.randint(-128, -122, (400, 9)).astype(np.int8)  # with many ties
    logits, labels = codes.astype(np.float32), generator.randint(0, 9, 400)
    order = np.argsort(-logits, axis=1, kind="stable")
    for metric in (Top1(), TopK(2), Top5()):
        metric.update_state(labels[:200], logits[:200])
        metric.update_state(labels[200:, None], logits[200:])
        expected = np.sum(order[:, : metric.k] == labels[:, None])
        assert float(metric.result()) == pytest.approx(expected / 400, abs=1e-7)
        for outputs in (codes, logits):
            assert top_hits(outputs, labels, metric.k) == expected


@pytest.mark.parametrize(("classes", "names"), [(5, ["top1"]), (6, ["top1", "top5"])])
def test_top5_is_measured_of_more_than_five_classes(classes, names):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(classes)])
    learner = Learner(model, batch_size=1)
    assert [metric.name for metric in learner.metrics] == ["loss", "data_loss", *names]


@pytest.mark.parametrize("classes", [2, 5])
def test_with_five_classes_or_fewer_every_label_is_among_the_top_five(classes):
    metric = Top5()
    metric.update_state(np.arange(classes), np.zeros((classes, classes), np.float32))
    assert float(metric.result()) == 1.0
    metric.update_state([0], np.full((1, classes), np.nan, np.float32))
    assert math.isnan(float(metric.result()))


@pytest.mark.parametrize("make", [Top1, Top5])
def test_images_without_a_label_do_not_count_whatever_their_logits(make):
    logits = np.eye(8, dtype=np.float32)
    logits[2] = np.nan
    metric = make()
    metric.update_state([0, 1, NO_LABEL, NO_LABEL], logits[:4])
    assert float(metric.result()) == 1.0
    metric.update_state([NO_LABEL], logits[:1])
    assert metric.count == 2
    assert float(metric.result()) == 1.0


@pytest.mark.parametrize("make", [Top1, Top5])
def test_a_label_that_is_no_class_is_never_right(make):
    metric = make()
    metric.update_state([3, 7], np.zeros((2, 3), np.float32))
    assert float(metric.result()) == 0.0


# -- what is drawn ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _generators_that_can_be_set():
    keras.backend.experimental.enable_tf_random_generator()
    yield
    keras.backend.experimental.disable_tf_random_generator()


def dropping_model():
    """A linear model behind Dropout, which another model holds."""
    shape = IMAGES.train_images.shape[1:]
    inner = keras.Sequential([keras.layers.Flatten(input_shape=shape), keras.layers.Dropout(0.5)])
    images = keras.Input(shape)
    outputs = keras.layers.Dense(10)(inner(images))
    return keras.Model(images, outputs)


def dropping_learner(strategy):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        learner = Learner(dropping_model(), batch_size=5)
        learner.compile(optimizer=keras.optimizers.SGD(1e-5, momentum=0.9))
        learner.optimizer.build(learner.student.trainable_variables)
    return learner


def test_what_is_drawn_depends_on_the_seed_and_the_step_alone():
    def loss_at(step, learner):
        learner.optimizer.learning_rate.assign(0.0)
        learner.optimizer.iterations.assign(step)
        batch = IMAGES.train_images[:5], IMAGES.train_labels[:5]
        return learner.train_on_batch(*batch, return_dict=True)["batch_loss"]

    learner = dropping_learner(tf.distribute.get_strategy())
    first, second = loss_at(1, learner), loss_at(2, learner)
    assert first != second
    assert loss_at(1, learner) == first
    assert loss_at(2, dropping_learner(tf.distribute.get_strategy())) == second


@pytest.mark.thorough
def test_replicas_with_unequal_shares_draw_the_same_again_after_a_resume(replicas, tmp_path):
    def batches(_):
        # Three images of each batch of five go to one replica, and two to the other.
        pixels = tf.data.Dataset.from_tensor_slices((IMAGES.train_images, IMAGES.train_labels))
        return pixels.batch(3).enumerate().map(_every_second_shorter)

    def losses(learner, first, count):
        shares = iter(replicas.distribute_datasets_from_function(batches))
        for _ in range(first):
            next(shares)
        step = learner.make_train_function()
        return [float(step(shares)["batch_loss"]) for _ in range(count)]

    learner = dropping_learner(replicas)
    losses(learner, 0, 2)
    saved = tf.train.Checkpoint(model=learner).write(str(tmp_path / "saved"))
    rest = losses(learner, 2, 2)
    other = dropping_learner(replicas)
    tf.train.Checkpoint(model=other).read(saved).assert_existing_objects_matched()
    assert losses(other, 2, 2) == rest


def _every_second_shorter(index, batch):
    pixels, labels = batch
    count = 3 - tf.cast(index % 2, tf.int32)
    return pixels[:count], labels[:count]


def test_an_output_of_a_file_that_is_not_finite_is_never_right():
    nan, inf = np.nan, np.inf
    outputs = np.array([[nan, 1.0], [0.0, nan], [inf, 0.0], [0.0, -inf], [0.0, 1.0]])
    for label in (0, 1):
        assert top_hits(outputs, np.full(5, label), 2) == 1
