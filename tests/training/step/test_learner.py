import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.top_k import top_hits
from sat_tf.qat.layout import inner_layer
from sat_tf.training.config_sections import StageConfig
from sat_tf.training.data.source import NO_LABEL
from sat_tf.training.learner import Learner, TopK, WarmupCosine, make_optimizer, training_copy
from tests.training.small import small_float_model, small_images, small_quantized_model

Top1, Top5 = functools.partial(TopK, 1), functools.partial(TopK, 5)
entropy = tf.nn.sparse_softmax_cross_entropy_with_logits

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
        loss = tf.reduce_sum(entropy(labels[known], logits[known]))
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
    batch = IMAGES.train_images[:8], IMAGES.train_labels[:8]
    logs = learner.train_on_batch(*batch, return_dict=True)
    assert np.isnan(logs["batch_loss"])
    np.testing.assert_equal([variable.numpy() for variable in model.trainable_variables], before)


@pytest.mark.thorough
def test_a_compiled_step_does_what_an_ordinary_one_does():
    def losses(jit_compile):
        learner = Learner(training_copy(small_quantized_model(), weight_decay=0.1), batch_size=8)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        learner.compile(optimizer=optimizer, jit_compile=jit_compile)
        batches = (np.split(part[:48], 6) for part in (IMAGES.train_images, IMAGES.train_labels))
        logs = [learner.train_on_batch(*b, return_dict=True) for b in zip(*batches, strict=True)]
        return [row["batch_loss"] for row in logs]

    # The compiler adds in another order, in float32, and a code may flip in between.
    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-3)


# -- the model that is trained ---------------------------------------------------------------------

DECAYING = ("stem", "pointwise", "classifier")


def inner(model):
    return {inner_layer(layer).name: inner_layer(layer) for layer in model.layers}


@pytest.mark.parametrize("make", [small_float_model, small_quantized_model])
def test_conv_and_dense_kernels_alone_decay_by_half_of_it_times_their_squares(make):
    model = training_copy(make(), weight_decay=0.3)
    model(IMAGES.train_images[:2].astype(np.float32), training=True)
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
    separable = keras.layers.SeparableConv2D(4, 3, name="separable")
    model = keras.Sequential([keras.Input((8, 8, 3)), separable])
    decaying = training_copy(model, weight_decay=0.2)
    kernel = decaying.get_layer("separable").pointwise_kernel.numpy()
    (loss,) = decaying.losses
    assert float(loss) == pytest.approx(0.1 * np.sum(np.square(kernel)), rel=1e-6)


def test_the_copy_computes_the_same_and_the_original_is_left_alone():
    model = small_quantized_model()
    copy = training_copy(model, weight_decay=0.1)
    images = IMAGES.test_images.astype(np.float32)
    np.testing.assert_array_equal(copy(images, training=False), model(images, training=False))
    assert not model.losses
    copied, kernel = (of.get_layer("quant_stem").layer.kernel for of in (copy, model))
    copied.assign_add(tf.ones_like(kernel))
    assert not np.array_equal(copied, kernel)


def test_a_decay_is_saved_and_loaded_with_the_model_and_replaced_by_another(tmp_path):
    model = training_copy(small_quantized_model(), weight_decay=0.1)
    decay = float(tf.add_n(model.losses))
    assert not training_copy(model).losses
    doubled = training_copy(model, weight_decay=0.2)
    assert float(tf.add_n(doubled.losses)) == pytest.approx(2 * decay)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert float(tf.add_n(loaded.losses)) == pytest.approx(decay)


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
    metric.update_state(tf.constant([0, 1, 2, 2]), tf.constant(LOGITS, tf.float16))
    assert float(metric.result()) == 0.75


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_logit_that_is_not_finite_makes_top1_nan(bad):
    logits = LOGITS.copy()
    logits[1, 2] = bad
    metric = Top1()
    for values in (logits, LOGITS):
        metric.update_state([0, 1, 2, 0], values)
        assert math.isnan(float(metric.result()))


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
    # An output of a file that is not finite is never right.
    nan, inf = np.nan, np.inf
    outputs = np.array([[nan, 1.0], [0.0, nan], [inf, 0.0], [0.0, -inf], [0.0, 1.0]])
    assert [top_hits(outputs, np.full(5, label), 2) for label in (0, 1)] == [1, 1]


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
def test_images_without_a_label_do_not_count_and_a_label_that_is_no_class_is_never_right(make):
    logits = np.eye(8, dtype=np.float32)
    logits[2] = np.nan
    metric = make()
    metric.update_state([0, 1, NO_LABEL, NO_LABEL], logits[:4])
    assert float(metric.result()) == 1.0
    metric.update_state([NO_LABEL], logits[:1])
    assert (metric.count, float(metric.result())) == (2, 1.0)
    metric.update_state([3, 7], np.zeros((2, 3), np.float32))
    assert float(metric.result()) == 0.5


@pytest.fixture(autouse=True)
def _generators_that_can_be_set():
    keras.backend.experimental.enable_tf_random_generator()
    yield
    keras.backend.experimental.disable_tf_random_generator()


def dropping_learner(strategy):
    """The learner of a linear model behind Dropout, which another model holds."""
    keras.utils.set_random_seed(3)
    images = keras.Input(IMAGES.train_images.shape[1:])
    with strategy.scope():
        start = keras.layers.Flatten(input_shape=images.shape[1:])
        inner = keras.Sequential([start, keras.layers.Dropout(0.5)])
        model = keras.Model(images, keras.layers.Dense(10)(inner(images)))
        learner = Learner(model, batch_size=5)
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
    def shorter(index, batch):
        count = 3 - tf.cast(index % 2, tf.int32)
        return tuple(part[:count] for part in batch)

    def batches(_):
        # Three images of each batch of five go to one replica, and two to the other.
        pixels = tf.data.Dataset.from_tensor_slices((IMAGES.train_images, IMAGES.train_labels))
        return pixels.batch(3).enumerate().map(shorter)

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


# -- learning rates --------------------------------------------------------------------------------

STAGE = StageConfig(
    epochs=2,
    batch_size=256,
    base_learning_rate=0.3,
    warmup_learning_rate=0.1,
    warmup_epochs=1,
    momentum=0.9,
    weight_decay=0.25,  # large, so that it cannot hide in rounding
)
STEPS_PER_EPOCH = 4


@pytest.mark.parametrize(
    ("first", "peak", "warmup", "total"),
    [
        (0.05, 0.4, 7, 40),
        (0.0, 1.0, 1, 2),
        (0.05, 0.05, 5, 50),
        (0.1, 0.1, 0, 30),
        (0.3, 0.2, 0, 1),
    ],
)
def test_every_step_is_that_of_the_formula_in_double_precision(first, peak, warmup, total):
    schedule = WarmupCosine(
        first_learning_rate=first, peak_learning_rate=peak, warmup_steps=warmup, total_steps=total
    )
    rates = [first + (peak - first) * step / warmup for step in range(warmup)]
    shares = np.arange(total - warmup) / (total - warmup)
    rates += [*(peak * (1 + np.cos(np.pi * shares)) / 2), 0.0, 0.0, 0.0]
    # A few roundings of float32 relative to the peak, which is where the numbers come from.
    found = [float(schedule(step)) for step in range(total + 3)]
    np.testing.assert_allclose(found, rates, atol=5e-7 * max(first, peak))


def schedule_of(stage, steps_per_epoch):
    config = make_optimizer(stage, steps_per_epoch).get_config()
    return WarmupCosine(**config["learning_rate"]["config"])


def test_a_stage_counts_its_warm_up_in_steps_and_leaves_one_to_cool():
    # The paper's: from 0.05 to 0.05 · 2048 / 256, half way down the cosine, the end, and past it.
    stage = StageConfig(epochs=5, warmup_epochs=5 / 3, batch_size=2048, base_learning_rate=0.05)
    schedule = schedule_of(stage, steps_per_epoch=3)
    assert (schedule.warmup_steps, schedule.total_steps) == (5, 15)
    rates = {0: 0.05, 1: 0.12, 4: 0.33, 5: 0.4, 10: 0.2, 15: 0.0, 16: 0.0, 1000: 0.0}
    assert {step: float(schedule(step)) for step in rates} == pytest.approx(rates, abs=1e-7)
    stage = StageConfig(epochs=1, warmup_epochs=0.9, batch_size=256)
    assert schedule_of(stage, steps_per_epoch=3).warmup_steps == 2
    assert schedule_of(stage, steps_per_epoch=1).warmup_steps == 0


def test_an_optimizer_with_the_schedule_survives_serialization():
    optimizer = make_optimizer(STAGE, STEPS_PER_EPOCH)
    read = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert read.get_config() == optimizer.get_config()
    assert float(read.learning_rate) == pytest.approx(0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("nesterov", [True, False])
def test_two_steps_are_those_of_the_formula_for_every_variable(nesterov):
    stage = STAGE.model_copy(update={"nesterov": nesterov})
    start = small_quantized_model()
    plain = training_copy(start)  # follows step by step, and tells the gradients
    trained = training_copy(start, weight_decay=stage.weight_decay)
    learner = Learner(trained, batch_size=32)
    learner.compile(optimizer=make_optimizer(stage, STEPS_PER_EPOCH))
    kernels = {id(inner(plain)[name].kernel) for name in DECAYING}
    decays = [stage.weight_decay * (id(v) in kernels) for v in plain.trainable_variables]
    assert np.count_nonzero(decays) == len(DECAYING)
    velocities = [np.zeros(variable.shape) for variable in plain.trainable_variables]
    # The learning rate is warming from 0.1 to 0.3 in four steps.
    for part, rate in ((slice(0, 32), 0.1), (slice(32, 64), 0.15)):
        images, labels = IMAGES.train_images[part].astype(np.float32), IMAGES.train_labels[part]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(entropy(labels, plain(images, training=True)))
        gradients = tape.gradient(loss, plain.trainable_variables)
        learner.train_on_batch(images, labels)
        for index, variable in enumerate(plain.trainable_variables):
            weights = variable.numpy().astype(np.float64)
            step = gradients[index].numpy().astype(np.float64) + decays[index] * weights
            velocities[index] = 0.9 * velocities[index] - rate * step
            ahead = 0.9 * velocities[index] - rate * step if nesterov else velocities[index]
            received, name = trained.trainable_variables[index].numpy(), variable.name
            # Both sides sum the same float32 gradients; the update rounds a few times more.
            np.testing.assert_allclose(received, weights + ahead, 2e-5, 2e-6, err_msg=name)
            # The skew of a symmetric range has no gradient.
            is_symmetric = name.endswith("/skew:0") and not weights
            assert is_symmetric or np.any(received != weights), name
            variable.assign(received)
