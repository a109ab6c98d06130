"""Training that schedules how many weights change their code in a step, in either Keras.

Lee et al., "Scheduling Weight Transitions for Quantization-Aware Training", ICCV 2025. A learning
rate says how far latent weights move, not how many of them come to another code: near the borders
between codes a low rate changes as many as a high one. Here the share that changes is scheduled,
and a factor on the steps of each kernel meets it.

Only TensorFlow's models need TensorFlow.
"""

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sat_tf.core.tensor_ops import in_float32, namespace
from sat_tf.quantizers.quantizing_layer import QuantizingLayer

try:  # Either Keras takes the callbacks of the other, and this one is not everywhere.
    from tf_keras.callbacks import Callback
except ModuleNotFoundError:
    from keras.callbacks import Callback  # noqa: TID251 -- there is no other Keras then

Rates = npt.NDArray[np.float64]

# The moving average of rates reaches back some ten steps; the paper's a hundred, of a hundred
# thousand.
MOMENTUM = 0.9
# A factor changes by a tenth in a step, and does not make up for the last steps of an optimizer,
# whose rate falls to 0.
GAIN, LARGEST_FACTOR = 0.1, 10.0


def changed_share(earlier: Any, now: Any) -> Any:
    """The share of weights whose codes differ, a float32 scalar of the library of tensors."""
    n = namespace(now)
    return n.mean(n.cast(earlier != now, "float32"))


def target_rates(first_rate: float, bits: Sequence[int], done: float) -> Rates:
    """The share of the weights of each kernel that is to change its code in a step.

    R = first_rate sqrt(b) (1 + cos(π done)) / 2, with the bits b of its codes, and the share of the
    steps that are done.
    """
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
    return first_rate * cosine * np.sqrt(np.asarray(bits, np.float64))


def running_rates(running: Rates, shares: Rates) -> Rates:
    """The moving average of the shares k that have changed: K <- m K + (1 - m) k."""
    return MOMENTUM * running + (1.0 - MOMENTUM) * shares


def adapted_factors(factors: Rates, targets: Rates, running: Rates) -> Rates:
    """The factors on the next step: U <- U exp(g max(1 - K / R, -1)), up to `LARGEST_FACTOR`.

    The paper's U + η (R - K) grows too slowly for a short training, as R and K are hundredths.
    Where the target is 0, so is the factor.
    """
    ratios = running / np.where(targets > 0.0, targets, 1.0)
    grown = factors * np.exp(GAIN * np.maximum(1.0 - ratios, -1.0))
    return np.where(targets > 0.0, np.minimum(grown, LARGEST_FACTOR), 0.0)


class TransitionRate(Callback):
    """Schedules how many weights change their code in a step of `fit`.

        model.fit(batches, epochs=5, callbacks=[sat_tf.callbacks.TransitionRate(5 * len(batches))])

    After each step of the optimizer, the change of every kernel is multiplied by a factor of that
    kernel, which grows while fewer weights than `target_rates` come to another code, and falls
    while more do; biases, normalizations and the ranges of quantizers keep the optimizer's rate.
    It goes with every optimizer of tf_keras and of Keras 3, on all its backends, and comes before
    callbacks that save or measure weights at the end of a batch.

    Under `tf.distribute` every worker has to have it. A training that goes on with another object,
    as one does in a new process, needs the `state` of the former one:

        goes_on = sat_tf.callbacks.TransitionRate(steps)
        goes_on.state = json.loads(path.read_text())  # json.dumps(callback.state) of the first

    Args:
        total_steps: the steps of the whole training, as the optimizer counts them.
        first_rate: the target at the beginning, times sqrt(bits); it falls to 0 on half a cosine.
        most_bits: kernels whose codes have more bits are left alone.
        model: what holds the kernels, if the model that is fitted only calls it.

    Raises:
        ValueError: an argument is out of its range; or when training begins, there is no kernel to
            control, several batches are one execution, or the state of earlier steps is not there.
    """

    # Keras would otherwise fetch every logged value after every step, and wait for the device.
    _supports_tf_logs = True

    def __init__(
        self,
        total_steps: int,
        *,
        first_rate: float = 0.02,
        most_bits: int = 4,
        model: Any = None,
    ) -> None:
        super().__init__()
        if total_steps < 1 or not 0 <= first_rate <= 1:
            raise ValueError(
                f"TransitionRate: received total_steps={total_steps} and first_rate={first_rate}, "
                "expected 1 step or more, and a share from 0 to 1."
            )
        self.total_steps, self.first_rate, self.most_bits = total_steps, first_rate, most_bits
        # The number of steps that are done, and K and U of the kernels; empty before the first.
        self.state: dict[str, Any] = {}
        self._holder, self._layers, self._is_known = model, list[Any](), False

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds the kernels."""
        self._is_known, holder = False, self._holder or self.model
        layers = [
            layer
            for layer in holder._flatten_layers()
            if isinstance(layer, QuantizingLayer) and layer.trainable
            if getattr(layer.weight_quantizer, "num_bits", None) in range(1, self.most_bits + 1)
        ]
        if not layers:
            raise ValueError(
                f"TransitionRate: received {holder.name!r}, where no trainable kernel has codes of "
                f"{self.most_bits} bits or fewer, expected one that has; quantize it first, by "
                "sat_tf.quantize_model, or raise most_bits."
            )
        if layers == self._layers:  # its functions are traced already
            return
        self._layers, self._look, self._move = layers, self._looked, self._moved
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None and tensorflow.is_tensor(_kernel(self._layers[0])):
            # One by one, its operations would take as long as a step.
            self._look, self._move = (
                tensorflow.function(functools.partial(function), autograph=False)
                for function in (self._look, self._move)
            )

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Remembers the weights before the step."""
        iterations = self.model.optimizer.iterations
        seen = self.state.get("step", 0), len(self.state.get("rates", self._layers))
        if not self._is_known and (here := (int(iterations.numpy()), len(self._layers))) != seen:
            raise ValueError(
                f"TransitionRate: received the state of step {seen[0]} with {seen[1]} kernels, "
                f"expected that of step {here[0]} with {here[1]} kernels, where the training goes "
                "on; set `state` to that of the callback before, or compile the model again, with "
                "a new callback."
            )
        self._is_known, self._first_batch, self._before = True, batch, self._look()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Moves the weights as far as the factors say, and adapts these."""
        if batch != self._first_batch:
            raise ValueError(
                f"TransitionRate: received {batch - self._first_batch + 1} batches in one "
                "execution, expected one, as it acts after each; compile the model with "
                "steps_per_execution=1."
            )
        # During an epoch on JAX, Keras keeps the weights elsewhere until they are asked for.
        getattr(self.model, "jax_state_sync", lambda: None)()
        step = int(self.model.optimizer.iterations.numpy())
        bits = [layer.weight_quantizer.num_bits for layer in self._layers]
        targets = target_rates(self.first_rate, bits, step / self.total_steps)
        rates = np.array(self.state.get("rates", targets))
        factors = np.array(self.state.get("factors", np.ones_like(targets)))
        shares = self._move(*self._before, factors.astype(np.float32))
        rates = running_rates(rates, np.array([float(k) for k in shares]))
        factors = adapted_factors(factors, targets, rates)
        self.state = {"step": step, "rates": rates.tolist(), "factors": factors.tolist()}

    def _looked(self) -> tuple[list[Any], list[Any]]:
        """The latent weights, as copies, and their codes."""
        latents = [_latent(layer) for layer in self._layers]
        return latents, [_units(*pair) for pair in zip(self._layers, latents, strict=True)]

    def _moved(self, latents: list[Any], units: list[Any], factors: Any) -> list[Any]:
        """Multiplies the change of each kernel by its factor; the shares that have changed."""
        shares = []
        for place, layer in enumerate(self._layers):
            earlier = latents[place]
            latent = earlier + (_latent(layer) - earlier) * factors[place]
            _kernel(layer).assign(latent)
            shares.append(changed_share(units[place], _units(layer, latent)))
        return shares


def _kernel(layer: QuantizingLayer) -> Any:
    return getattr(layer.layer, layer._kernel_name)


def _latent(layer: QuantizingLayer) -> Any:
    kernel = _kernel(layer)
    n = namespace(kernel)
    return n.stop_gradient(in_float32(n, kernel)) + 0.0  # PyTorch changes the variable in place


def _units(layer: QuantizingLayer, latent: Any) -> Any:
    return layer.weight_quantizer.units(latent, layer.kernel_variables)
