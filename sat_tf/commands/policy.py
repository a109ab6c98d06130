"""How every command is told to quantize a model, and the policy and input range that follow."""

import argparse
import dataclasses
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from sat_tf.commands.options import add_target
from sat_tf.commands.parser import RANGE, Parser
from sat_tf.exact.tflite.input_range import INPUT_TYPES, PIXELS, range_problem
from sat_tf.files import read_text
from sat_tf.messages import ProblemsError, RunError, problems_of, say
from sat_tf.messages.validation import Bits, option
from sat_tf.qat.policy import USUAL_BITS, BitPolicy
from sat_tf.qat.policy_fields import OLD_INPUT_RANGE
from sat_tf.yaml_text import load_yaml

if TYPE_CHECKING:
    import tf_keras as keras

bits = option(Bits)


def add_quantization(parser: Parser, *, target: str = "litert", chosen: bool = False) -> None:
    """Adds --bits, --input_range, --target, --unsupported and --policy, for `asked_policy`."""
    if not chosen:
        parser.add_argument(
            "--bits",
            metavar="N",
            type=bits,
            help=f"of weights and activations, 1 to 8; default: {USUAL_BITS}",
        )
    add_input_range(parser)
    add_target(parser, default=target)
    parser.advanced.add_argument(
        "--unsupported",
        choices=["error", "float"],
        help="what becomes of layers that cannot be quantized: error names them all, float leaves "
        "them float; default: error",
    )
    parser.fields = BitPolicy.__dataclass_fields__
    parser.advanced.add_argument(
        "--policy",
        nargs="+",
        default=[],
        metavar="FILE|KEY=VALUE",
        help="other fields of sat_tf.BitPolicy as KEY=VALUE, or a YAML file of them, in which "
        "those left out are those of BitPolicy.mobile()",
    )


def add_input_range(parser: Parser) -> None:
    """Adds --input_range, for every command that feeds a float model."""
    parser.add_argument(
        RANGE,
        metavar="LOW,HIGH|NAME",
        type=_input_range,
        help="the real values of the pixels 0 and 255 for a float model, such as 0,1 for x / 255, "
        "or tf (-1 to 1), torch or caffe, a preprocessing of keras.applications; a quantized "
        "model has its own; default: pixels where its layers convert them, else found by "
        "statistics of BatchNormalization or the accuracy on labelled images",
    )


def _input_range(text: str) -> Any:
    """A range as BitPolicy takes it; one number is the high end of a range from 0."""
    try:
        ends = [float(end) for end in text.split(",")]
    except ValueError:
        ends = []
    value: Any = text if not ends else (0.0, *ends) if len(ends) == 1 else tuple(ends)
    if problem := range_problem(value):
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}")
    return value


def asked_policy(
    arguments: argparse.Namespace, config: pathlib.Path | None = None
) -> BitPolicy | None:
    """The policy from the options; None if no option sets one.

    The policy of a file or of a run comes first; --bits, KEY=VALUE and the other options change it,
    in this order.
    """
    words, asked_bits = arguments.policy, getattr(arguments, "bits", None)
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise RunError(
            f"--policy: received the files {' and '.join(files)}, expected one at most; write "
            "fields as KEY=VALUE."
        )
    named = ("input_range", "target", "unsupported")
    flags = {name: value for name in named if (value := getattr(arguments, name)) is not None}
    if config is not None and not config.is_file():
        config = None
    if asked_bits is None and not (words or flags or config):
        return None
    usual = dict.fromkeys(("weight_bits", "activation_bits"), asked_bits or USUAL_BITS)
    fields: dict[str, Any] = usual
    if files:
        fields = usual | _fields_in(pathlib.Path(files[0]))
    elif config is not None:
        fields = _fields_in(config)
    if asked_bits is not None:
        fields |= usual
    problems = []
    for word in (word for word in words if word not in files):
        key, _, text = word.partition("=")
        try:
            fields[key.strip()] = load_yaml(text)
        except ValueError as error:
            problems.append(f"{word!r}: the value is not valid YAML; {error}")
    if flags:
        fields = {key: value for key, value in fields.items() if key != OLD_INPUT_RANGE} | flags
    try:
        policy = BitPolicy(**fields)
    except ValueError as error:
        problems += problems_of(error)
    if problems:
        raise RunError(ProblemsError("--policy", problems))
    return policy


def usual_policy(arguments: argparse.Namespace) -> BitPolicy:
    """The policy from the options, or that of `sat-tf quantize` without any."""
    return asked_policy(arguments) or BitPolicy.mobile()


def _fields_in(path: pathlib.Path) -> dict[str, Any]:
    """The fields of a policy in a file, or in the configuration of a run."""
    try:
        values = load_yaml(read_text(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(
            f"--policy {path}: {reason}; expected a YAML file with fields of BitPolicy, or "
            "KEY=VALUE."
        ) from error
    if isinstance(values, dict) and isinstance(values.get("policy"), dict):
        values = values["policy"]
    if not isinstance(values, dict):
        raise RunError(
            f"--policy {path}: received {type(values).__name__}, expected a mapping with fields of "
            "BitPolicy, such as `weight_bits: 4`."
        )
    return {str(key): value for key, value in values.items()}


# Takes a number of images, and gives so many with their labels or None.
Sample = Callable[[int], tuple[np.ndarray, Any]]


def with_input_range(
    policy: BitPolicy,
    model: "keras.Model",
    subject: str,
    sample: Sample,
    console: Console,
    *,
    is_trained: bool = True,
) -> BitPolicy:
    """The policy with the range of a float model's input: the given one, or the one that is found.

    Prints which it is, and a note where a given one may be wrong. A model that may not be trained
    yet is fed pixels where no range is more accurate than others.
    """
    from sat_tf.analysis.range_accuracy import USUAL_IMAGES, found_range, range_accuracies
    from sat_tf.graph.rewrite import network_of_layers
    from sat_tf.qat.input_range_checks import range_statistics
    from sat_tf.qat.inputs import converts_pixels

    if policy.type_of(model.input_names[0]) != INPUT_TYPES[0]:
        return policy  # real values
    network = network_of_layers(model)
    if not policy.states_input_range and converts_pixels(network, network.input):
        say(console, "Input range: pixels, which its own layers convert.")
        return dataclasses.replace(policy, input_range=PIXELS.spelling)
    pixels, labels = sample(USUAL_IMAGES)
    if policy.states_input_range:
        stated = policy.range_of(model.input_names[0])
        statistics = range_statistics(network, [stated.fed(pixels)], 0, stated)
        if statistics is not None and statistics.fitting is not None:
            fits = statistics.fitting
            ends = ",".join(f"{end:.6g}" for end in (*fits.low, *fits.high))
            raise ValueError(
                f"{subject}: received a model that is fed input_range={stated}, expected the range "
                f"that it was trained with, which is {statistics.likely} by {statistics}; give "
                f"{RANGE}={fits.spelling if fits.channels else ends}."
            )
        accuracies = range_accuracies(model, pixels, labels, stated)
        if accuracies is None:
            return policy
        note = accuracies.guessing_problem if is_trained else None
        if accuracies.fitting is not None:
            note = f"{subject}: {accuracies.problem}."
        if note is not None:
            say(console, f"Note: {note}", style="yellow")
        return policy
    say(console, f"Looking for the input range on {len(pixels):,} images")
    try:
        best_accuracies = found_range(subject, model, pixels, labels)
    except ValueError:
        statistics = range_statistics(network, [PIXELS.fed(pixels)], 0, PIXELS)
        best = None if statistics is None else statistics.best
        if best is not None:
            say(console, f"Input range: {best.given}, found by {best}; {RANGE} gives another.")
            return dataclasses.replace(policy, input_range=best.given.spelling)
        accuracies = range_accuracies(model, pixels, labels, PIXELS)
        if is_trained or (accuracies is not None and accuracies.fitting is not None):
            raise
        say(console, f"Input range: {PIXELS}, as no other is clearly right; {RANGE} gives it.")
        return policy
    say(
        console,
        f"Input range: {best_accuracies.given}, found: {best_accuracies}. If the model is more "
        f"accurate than that elsewhere, it is fed another range; give {RANGE}.",
    )
    return dataclasses.replace(policy, input_range=best_accuracies.given.spelling)


def feed_of(policy: BitPolicy, model: "keras.Model") -> Callable[[np.ndarray], np.ndarray]:
    """The function from images to the input of a float model; real values are only cast."""
    (name,) = model.input_names
    if policy.type_of(name) == INPUT_TYPES[0]:
        return policy.range_of(name).fed
    return lambda values: values.astype(np.float32)
