import numpy as np
import tf_keras as keras

from sat_tf.training.callbacks.measuring import BestWeights


def test_the_weights_of_the_best_measurement_come_back():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    best = BestWeights(model)
    measured = [  # top-1, loss
        (0.5, 1.0),
        (0.75, 0.9),
        (0.75, 0.8),  # the better of two with the same top-1
        (0.75, 0.8),
        (float("nan"), 0.1),
        (0.7, 0.1),
    ]
    for epoch, (top1, loss) in enumerate(measured):
        model.set_weights([np.full((2, 1), epoch), np.full(1, epoch)])
        best.take_if_better(epoch, {"top1": top1, "loss": loss})
    best.restore()
    assert (best.epoch, best.top1) == (2, 0.75)
    assert all((weight == 2).all() for weight in model.get_weights())
