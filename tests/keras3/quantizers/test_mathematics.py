import keras

from sat_tf.keras3 import core
from sat_tf.keras3.core import dorefa as dorefa_in_ops
from sat_tf.keras3.core import pact as pact_in_ops
from sat_tf.keras3.quantizers import mathematics


def test_tensorflow_has_the_functions_of_the_twin_and_others_those_of_keras(monkeypatch):
    for name, in_ops in (("pact", pact_in_ops), ("dorefa", dorefa_in_ops)):
        choose = getattr(mathematics, name).__wrapped__
        for backend, home in (
            ("tensorflow", "sat_tf.core"),
            ("jax", core.__name__),
            ("torch", core.__name__),
        ):
            monkeypatch.setattr(keras.backend, "backend", lambda found=backend: found)
            assert choose().__name__ == f"{home}.{name}"
        assert choose() is in_ops
