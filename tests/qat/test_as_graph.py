import tensorflow as tf

from sat_tf.qat.walk import as_graph


class Probe:
    def __init__(self, factor):
        self.factor, self.traced = factor, 0
        self.measure = as_graph(self.run)

    def run(self, x):
        self.traced += 1
        return self.factor * x


def test_a_measurement_is_traced_once_for_equal_shapes():
    probe = Probe(3.0)
    assert [float(probe.measure(tf.constant(x))) for x in (1.0, 2.0)] == [3.0, 6.0]
    assert probe.traced == 1


def test_probes_of_many_models_are_no_reason_to_warn(caplog):
    # TensorFlow warns from the fifth of the last ten calls that trace on.
    for factor in range(8):
        Probe(float(factor)).measure(tf.constant(1.0))
    assert "retracing" not in caplog.text
