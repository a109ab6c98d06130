"""The fit of a part of a quantized network to the outputs of the float network, by Adam.

A file holds the finished blocks, the weights of the model after them, and all that the next step of
the fit under way depends on. A model that is fitted in two processes is therefore, bit for bit, the
one that is fitted in one.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.grid import LARGEST_INT8
from sat_tf.exact.top_k import classes_of
from sat_tf.files import BYTES_BESIDE_WEIGHTS, read_arrays, renamed_when_done
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.messages import RunError, warn
from sat_tf.messages.progress_bar import Progress
from sat_tf.qat.images import BATCH_SIZE, Images, Rows
from sat_tf.qat.reconstruction.blocks import Span, computed
from sat_tf.qat.wrapper import QuantizedLayer, clipping_quantizer, has_table, weight_quantizer
from sat_tf.quantizers.values import SKEW, WITHIN
from sat_tf.version import __version__

_IMAGES_A_STEP = 32
# The units of fitted variables, which are 1 for biases and normalizations: those of activation
# quantizers in codes, those of weight quantizers in their own size, and those of latent weights in
# codes over the number of codes. The finer a grid is, the less is gained by moving weights to other
# codes, and a longer step would only do so at random.
_LEVEL_CODES, _LATENT_SHARE = 2.0, 6.0
# The time after which a fit under way is saved again.
_SECONDS_BETWEEN = 30.0
# For each weight, a file has at most that of the model itself, two values and two moments, in
# float64 at most.
_BYTES_A_WEIGHT = 5 * 8
# The errors that reading a damaged file raises.
_DAMAGES = (OSError, ValueError, LookupError, TypeError, MemoryError, RecursionError)


class FitSchedule(NamedTuple):
    """The schedule of one fit by Adam, whose rate falls to 0 on a cosine."""

    steps: int  # The number of steps.
    rate: float  # The rate of the first step.
    measured: int  # How often the errors of the held-out images are measured.


class _Trained(NamedTuple):
    """A variable that is fitted, and how far one step moves it, or each number, at a rate of 1."""

    variable: tf.Variable
    unit: float | np.ndarray


def trained(layer: keras.layers.Layer) -> list[_Trained]:
    """The variables of a layer that are fitted: those that training would change, if quantized."""
    if not isinstance(layer, QuantizedLayer):
        return []
    units: dict[int, float | np.ndarray] = {}
    weights, clipping = weight_quantizer(layer), clipping_quantizer(layer)
    if weights is not None and weights.num_bits is not None:
        kernel = layer_kinds.kernel_of(layer.layer)
        units[id(kernel)] = _latent_unit(kernel, weights.top_unit)
        largest = float(np.max(np.abs(kernel.numpy())))
        # Scales and ends of intervals often start far from where the error is least.
        for learnt in layer.kernel_variables.values():
            sizes = np.abs(learnt.numpy())
            units[id(learnt)] = np.where(sizes > 0, sizes, largest)
    if has_table(layer):
        table = getattr(layer.layer, layer_kinds.table_of(layer.layer))
        units[id(table)] = _latent_unit(table, 2 * LARGEST_INT8)
    if layer.place == WITHIN:  # an LSTM
        cell, top = layer.layer.cell, 2 ** (layer.gate_bits or 8) - 2
        units |= {id(k): _latent_unit(k, top) for k in (cell.kernel, cell.recurrent_kernel)}
    if clipping is not None:
        code = float(clipping.code_range(layer.output_variables).scale)
        units |= {id(variable): _LEVEL_CODES * code for variable in layer.output_variables.values()}
        if SKEW in layer.output_variables:  # a share of the level
            level = clipping.highest_value(layer.output_variables)
            units[id(layer.output_variables[SKEW])] = _LEVEL_CODES * code / level
    return [
        _Trained(variable, units.get(id(variable), 1.0)) for variable in layer.trainable_variables
    ]


def _latent_unit(weights: tf.Variable, top_unit: int) -> float:
    """The unit of latent weights with codes 0..top, from their largest magnitude."""
    return _LATENT_SHARE * 2.0 * float(np.max(np.abs(weights.numpy()))) / top_unit**2


class _Adam:
    """Adam, with a unit for each variable; Kingma and Ba, 2015.

        m = β₁ m + (1 - β₁) g,  v = β₂ v + (1 - β₂) g²,
        w = w - rate · unit · (m / (1 - β₁ᵗ)) / (√(v / (1 - β₂ᵗ)) + ε)

    in step t = 1, 2, ..., and then the constraint of the variable.
    """

    _MEAN, _SQUARE, _EPSILON = 0.9, 0.999, 1e-7

    def __init__(self, variables: Sequence[_Trained]) -> None:
        self._variables = variables
        zeros = [tf.zeros_like(pair.variable) for pair in variables]
        self._moments = [(tf.Variable(zero), tf.Variable(zero)) for zero in zeros]
        self._steps = tf.Variable(0.0)
        self.state = [self._steps, *itertools.chain.from_iterable(self._moments)]

    def apply(self, gradients: Sequence[tf.Tensor | None], rate: tf.Tensor) -> None:
        """Moves the variables; those that have no gradient stay."""
        steps = self._steps.assign_add(1.0)
        updates = zip(self._variables, self._moments, gradients, strict=True)
        for (variable, unit), (mean, square), gradient in updates:
            if gradient is None:
                continue
            gradient = tf.convert_to_tensor(gradient)  # that of a table has its rows alone
            mean.assign(self._MEAN * mean + (1.0 - self._MEAN) * gradient)
            square.assign(self._SQUARE * square + (1.0 - self._SQUARE) * tf.square(gradient))
            towards = mean / (1.0 - self._MEAN**steps)
            size = tf.sqrt(square / (1.0 - self._SQUARE**steps)) + self._EPSILON
            value = variable - rate * unit * towards / size
            constraint = variable.constraint
            variable.assign(value if constraint is None else constraint(value))


# The values in an output that is a row of classes.
_LOGITS, _PROBABILITIES = "logits", "probabilities"
# Classes that the float model finds unlikely tell much of it. At T = 1 they would hardly count: it
# is sure of most images, above all of those that it was trained on.
TEMPERATURE = 4.0


def rows_of_classes(network: Network, name: str, shape: tuple[int | None, ...]) -> str:
    """How an output is rows of classes: "logits" or "probabilities"; "" where it is not."""
    maker = network.origin(name, lambda node: layer_kinds.role_of(node.layer).keeps_codes)
    *_, size = shape or (None,)
    if layer_kinds.is_softmax(maker.layer):
        return _PROBABILITIES if maker.shape[-1] == size else ""
    is_linear = layer_kinds.activation_name(maker.layer) == "linear"
    return _LOGITS if is_linear and size is not None and size > 1 else ""


def row_of(float_model: keras.Model) -> tuple[str, str]:
    """Tells what a row of a model's only output holds, "logits" or "probabilities".

    If the quantized form of the model cannot be fine-tuned, it returns "" and the reason, in words.
    """
    if len(float_model.outputs) > 1:
        return "", f"a model of {len(float_model.outputs)} outputs"
    network = network_of_layers(float_model)
    shape = network[network.output].shape
    if len(shape) == 1 and (row := rows_of_classes(network, network.output, shape)):
        return row, ""
    sizes = tuple(float_model.output_shape[1:])
    return "", f"a model with outputs of shape {sizes} that are no row of classes"


class Aim(NamedTuple):
    """The values that a tensor should have."""

    wanted: Rows  # The wanted values of the tensor for all images.
    # "logits" or "probabilities" where the rows are these; their divergence then counts, too.
    rows: str = ""

    def mean_square(self) -> float:
        """The mean square of the values, which may be in a file."""
        total = 0.0
        for indices in _parts(np.arange(len(self.wanted))):
            total += float(np.sum(np.square(self.wanted[indices].astype(np.float64))))
        return total / self.wanted.size


def logits_of(outputs: tf.Tensor, row: str) -> tf.Tensor:
    """Logits in float32, which up to a constant of the row are the logarithms of probabilities."""
    outputs = tf.cast(outputs, tf.float32)
    tiny = float(np.finfo(np.float32).tiny)  # A float32 softmax gives 0 below this.
    return tf.math.log(tf.maximum(outputs, tiny)) if row == _PROBABILITIES else outputs


def soft_divergence(teacher: tf.Tensor, student: tf.Tensor, temperature: float) -> tf.Tensor:
    """How far the student's probabilities are from the teacher's: T² KL(p || q).

    p = softmax(teacher / T), q = softmax(student / T), KL(p || q) = Σ_k p_k (log p_k - log q_k).
    The gradient of the student is T (q - p); without the factor T² it would shrink with T².
    """
    log_p = tf.nn.log_softmax(tf.stop_gradient(teacher) / temperature)
    log_q = tf.nn.log_softmax(student / temperature)
    return temperature**2 * tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=-1)


class FitState(NamedTuple):
    """A fit under way, as far as its next step depends on it; see `Part.fit`."""

    done: int  # How many steps are done.
    order: np.ndarray  # The places of the images that are next.
    best: np.ndarray  # The least errors so far.
    values: list[np.ndarray]  # The values of the variables with these errors.
    current: list[np.ndarray]  # The values that the variables have now.
    moments: list[np.ndarray]  # The step count and the moments of Adam.


@dataclasses.dataclass
class Checkpoint:
    """The file of one reconstruction."""

    path: pathlib.Path | None  # The path of the file; None keeps nothing.
    say: Callable[[str], None] = lambda words: None  # Is told where the reconstruction goes on.
    # Whether a file that is missing, or of another reconstruction, is an error; by default it is
    # passed over.
    is_expected: bool = False
    # The finished fits, as plain values.
    fits: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # The time that earlier processes have taken.
    # The state of the fit that comes next, as far as an earlier process has got.
    under_way: FitState | None = None
    saved: str = ""  # The file's contents, in words; "" without a file of this reconstruction.

    def open(self, key: str, model: keras.Model, draw: np.random.Generator, *, blocks: int) -> None:
        """Takes up what the file holds, and restores the state of the model and of the draws."""
        self._key, self._model, self._draw, self._blocks = key, model, draw, blocks
        self._begin = self._last = time.monotonic()
        if self.path is not None and self.path.exists():
            self._take_up(self.path)
        if self.is_expected and not self.saved:
            raise RunError(
                f"--resume: {self.path}: received no unfinished reconstruction of this model with "
                "these images and settings, expected one; leave out --resume to begin a new one."
            )
        self._weights = model.get_weights()

    @property
    def seconds_so_far(self) -> float:
        """The time that this process and earlier ones have taken."""
        return self.seconds + time.monotonic() - self._begin

    def finish(self, fit: Mapping[str, Any]) -> None:
        """Adds a finished fit, and saves it with the weights that the model has now."""
        self.fits.append(dict(fit))
        self._weights = self._model.get_weights()
        self.keep(None)

    @property
    def is_due(self) -> bool:
        """Whether it is time to save the fit under way again."""
        return self.path is not None and time.monotonic() - self._last >= _SECONDS_BETWEEN

    def keep(self, state: FitState | None) -> None:
        """Saves the finished fits, and the one that is under way."""
        self.under_way = state
        if self.path is None:
            return
        lists = [self._weights]
        if state is not None:
            lists += [[state.order], [state.best], state.values, state.current, state.moments]
        values = {
            "key": self._key,
            "fits": self.fits,
            "draw": self._draw.bit_generator.state,
            "seconds": self.seconds_so_far,
            "done": 0 if state is None else state.done,
            "sizes": [*map(len, lists)],
        }
        arrays = itertools.chain([np.array(json.dumps(values))], *lists)
        try:
            with renamed_when_done(self.path) as temporary, temporary.open("wb") as file:
                np.savez(file, *arrays, allow_pickle=False)
            self.saved = self._words()
        except OSError as error:
            warn(
                f"{self.path}: cannot be written ({error.strerror or error}): if it is "
                "interrupted, the reconstruction goes on from "
                f"{self.saved or 'its beginning'}; free some space."
            )
            self.path = None
        self._last = time.monotonic()

    def _words(self) -> str:
        if len(self.fits) > self._blocks:
            return "all of the reconstruction"
        words = f"{len(self.fits)} of {self._blocks} blocks of the reconstruction"
        state = self.under_way
        return words if state is None else f"{words}, and {state.done} steps of what follows"

    def _take_up(self, path: pathlib.Path) -> None:
        try:
            most_bytes = _BYTES_A_WEIGHT * self._model.count_params() + BYTES_BESIDE_WEIGHTS
            text, *arrays = read_arrays(path, most_bytes)
            values, unread = json.loads(str(text)), iter(arrays)
            if values["key"] == self._key:
                sizes = values["sizes"]
                weights, *state = ([*itertools.islice(unread, size)] for size in sizes)
                if state:
                    (order,), (best,), *value_lists = state
                    self.under_way = FitState(values["done"], order, best, *value_lists)
                self._model.set_weights(weights)
                self._draw.bit_generator.state = values["draw"]
                self.fits, self.seconds = values["fits"], values["seconds"]
                self.saved = self._words()
        except _DAMAGES as error:
            self.under_way = None
            warn(f"{path}: passed over, as it is damaged ({error}).")
            return
        if self.saved:
            self.say(f"Going on with {self.saved}, which {path} holds.")
        elif not self.is_expected:
            self.say(f"{path}: passed over, as it is of another model, other images or settings.")


def key_of(network: Network, reference: Network, images: Images, **settings: Any) -> str:
    """A hash of all that a reconstruction depends on, except the names of layers."""
    hasher = hashlib.sha256(repr((__version__, tf.__version__, sorted(settings.items()))).encode())
    for graph in (network, reference):
        places = {node.name: place for place, node in enumerate(graph)}
        for node in graph:
            inputs = [places.get(name, -1) for name in node.inputs]
            config = json.dumps(_nameless(node.layer.get_config()), sort_keys=True)
            hasher.update(repr((type(node.layer).__name__, inputs, config)).encode())
            for variable in node.layer.variables:
                hasher.update(variable.numpy().tobytes())
    for array in images:
        hasher.update(repr((array.shape, str(array.dtype))).encode())
        for start in range(0, len(array), BATCH_SIZE):
            hasher.update(np.ascontiguousarray(array[start : start + BATCH_SIZE]).data)
    return hasher.hexdigest()


def _nameless(value: Any) -> Any:
    """Plain values without names of layers, which Keras numbers anew in each process."""
    if isinstance(value, Mapping):
        return {str(key): _nameless(entry) for key, entry in value.items() if key != "name"}
    if isinstance(value, list | tuple):
        return [_nameless(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return type(value).__name__


class Part:
    """A part of a quantized network that is fitted at once, except layers with given `id`s."""

    def __init__(self, span: Span, aims: Mapping[str, Aim], without: Collection[int] = ()) -> None:
        self.span, self._aims = span, aims
        layers = {id(node.layer): node.layer for node in span.nodes}
        by_layer = [trained(layer) for key, layer in layers.items() if key not in without]
        self.layers = sum(map(bool, by_layer))
        self._variables = [variable for layer in layers.values() for variable in layer.variables]
        self._trained = [pair for pairs in by_layer for pair in pairs]
        self._sizes = {name: aim.mean_square() or 1.0 for name, aim in aims.items()}

    def fit(
        self,
        plan: FitSchedule,
        fitted: np.ndarray,
        held_out: np.ndarray,
        draw: np.random.Generator,
        advance: Progress,
        checkpoint: Checkpoint,
        limit: np.ndarray | None = None,
        measure_statistics: Callable[[], object] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gives the part the values with the smallest errors that are found.

        The images that are held out measure its errors, none of which may exceed the limit, by
        default the errors before. Where a function measures the statistics of normalizations,
        before the errors, the part is fitted with those of batches; by default they keep what they
        have. Returned are the errors before, and those that the part has now.
        """
        before = best = self.errors(held_out)
        if not self._trained:
            return before, before
        limit = before if limit is None else limit
        values, order, begun = _values(self._variables), fitted[:0], 0
        adam = _Adam(self._trained)
        if (earlier := checkpoint.under_way) is not None:
            advance.skip(earlier.done * len(self.span.nodes))
            begun, order, best, values = earlier.done, earlier.order, earlier.best, earlier.values
            _assign(self._variables, earlier.current)
            _assign(adam.state, earlier.moments)
        step = self._step(adam, on_batch_statistics=measure_statistics is not None)
        every = max(1, plan.steps // plan.measured)
        for done in range(begun + 1, plan.steps + 1):
            if len(order) < min(_IMAGES_A_STEP, len(fitted)):
                order = draw.permutation(fitted)
            indices, order = np.split(order, [_IMAGES_A_STEP])
            rate = 0.5 * plan.rate * (1.0 + math.cos(math.pi * (done - 1) / plan.steps))
            step(*self._batch(indices), tf.constant(rate))
            advance(len(self.span.nodes))
            if done % every == 0:
                if measure_statistics is not None:
                    measure_statistics()
                errors = self.errors(held_out)
                if np.all(errors <= limit) and np.sum(errors) < np.sum(best):
                    best, values = errors, _values(self._variables)
            if checkpoint.is_due:
                current, moments = _values(self._variables), _values(adam.state)
                checkpoint.keep(FitState(done, order, best, values, current, moments))
        _assign(self._variables, values)
        return before, best

    def errors(self, rows: np.ndarray) -> np.ndarray:
        """The squared error and the divergence of some images; see `reconstruct`."""
        total = np.zeros(2)
        for indices in _parts(rows):
            inputs, targets = self._batch(indices)
            total += self._far(self.span.compute(inputs), targets).numpy() * len(indices)
        return total / len(rows)

    def agreement(self, rows: np.ndarray) -> float | None:
        """Share of rows with the class of the float model; None without rows of classes."""
        equal: list[np.ndarray] = []
        for inputs, targets in map(self._batch, _parts(rows)):
            outputs = self.span.compute(inputs)
            for name in [name for name, aim in self._aims.items() if aim.rows]:
                student, teacher = (classes_of(side[name].numpy()) for side in (outputs, targets))
                equal.append(np.ravel(student == teacher))
        return float(np.mean(np.concatenate(equal))) if equal else None

    def _batch(self, indices: np.ndarray) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """The tensors that some images give to the part, and those that it should put out."""
        return (
            {name: tf.constant(array[indices]) for name, array in self.span.given.items()},
            {name: tf.constant(aim.wanted[indices]) for name, aim in self._aims.items()},
        )

    def _step(self, adam: _Adam, *, on_batch_statistics: bool) -> Callable[..., None]:
        """A training step, on a batch and at a rate."""
        variables = [pair.variable for pair in self._trained]

        @tf.function
        def step(inputs: Any, targets: Any, rate: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                outputs = computed(self.span.nodes, inputs, on_batch_statistics=on_batch_statistics)
                distance = tf.reduce_sum(self._far(outputs, targets))
            adam.apply(tape.gradient(distance, variables), rate)

        return step

    def _far(self, outputs: Mapping[str, Any], targets: Mapping[str, Any]) -> tf.Tensor:
        """The squared error and the divergence of outputs from their targets."""
        squared = divergence = tf.constant(0.0)
        for name, aim in self._aims.items():
            output, target = (tf.cast(tensors[name], tf.float32) for tensors in (outputs, targets))
            squared += tf.reduce_mean(tf.square(output - target)) / self._sizes[name]
            if aim.rows:
                student, teacher = (logits_of(tensor, aim.rows) for tensor in (output, target))
                divergence += tf.reduce_mean(soft_divergence(teacher, student, TEMPERATURE))
        return tf.stack([squared, divergence])


def _values(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


def _assign(variables: Sequence[tf.Variable], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _parts(indices: np.ndarray) -> list[np.ndarray]:
    return np.split(indices, range(BATCH_SIZE, len(indices), BATCH_SIZE))
