"""`sat-tf audit`."""

import argparse
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from sat_tf.commands.models import (
    add_model_argument,
    add_model_sizes,
    model_maker,
    quiet_tensorflow,
)
from sat_tf.commands.options import (
    add_input_range,
    add_outputs,
    check_outputs,
    input_range_fields,
    write_outputs,
)
from sat_tf.commands.parser import Parser
from sat_tf.commands.pixels import (
    ImageOptions,
    add_image_arguments,
    fixed_input_shape,
    image_options,
)
from sat_tf.messages import say, value_errors_as_run_errors
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.input_range import PIXELS, InputRange
from sat_tf.training.state.run_folder import CONFIG

if TYPE_CHECKING:
    import tf_keras as keras

DESCRIPTION = """\
Checks an image model, quantized or not, against the rules of efficient training, and says for each
linear layer what is wrong and what to do:
  rule I   the classifier's weights are small: kappa_0 below 0.1; from 1 on the softmax saturates
  rule II  gradients keep their size from layer to layer: normalization right behind each layer, or
           weights of variance 1/n; kappa_1 and kappa_2 near 1
and that weights and activations use their codes, and clipping levels cut off only the tail.
Without images only the weights are audited; with labelled ones, gradients too."""
EXAMPLES = """\
examples:
  sat-tf audit model.keras
  sat-tf audit model.keras --images photos/ --page audit.html
  sat-tf audit runs/digits_mobilenet_v2_w4a4
  sat-tf audit mobilenet_v2 --image_size 24 --dataset glyphs
  sat-tf audit keras.applications:ResNet50 --csv audit.csv

exit status: 0; with --strict 1 if a rule is broken; 2 if something cannot be read or audited.
"""

_USUAL_IMAGES = 32


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    add_model_argument(parser)
    add_image_arguments(
        parser, default="none; for a run, its held-out images", usual=str(_USUAL_IMAGES)
    )
    add_model_sizes(parser)
    add_input_range(parser)
    add_outputs(parser, page="write a page with pictures (HTML)", csv="write the full table as CSV")
    parser.advanced.add_argument(
        "--only_findings", action="store_true", help="leave out layers that keep all rules"
    )
    parser.advanced.add_argument(
        "--strict", action="store_true", help="exit with status 1 if a rule is broken"
    )


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for; False where --strict finds a broken rule."""
    wanted = image_options(arguments, usual=_USUAL_IMAGES)
    make = model_maker(arguments, "audit")
    with value_errors_as_run_errors():
        check_outputs(arguments)
    quiet_tensorflow()
    from sat_tf.analysis.audit.audit import audit
    from sat_tf.analysis.audit.rules import Verdict
    from sat_tf.analysis.range_accuracy import range_note
    from sat_tf.graph.network import check_model

    with value_errors_as_run_errors():
        model = make()
        check_model(model)
        images = _images(arguments, wanted, model)
        note = None
        if images is not None:
            policy = BitPolicy(**input_range_fields(arguments))
            fed = _fed_range(model, policy)
            note = range_note(f"model {model.name!r}", model, images, fed, policy)
            if fed != PIXELS and images[0].dtype == np.uint8:
                images = fed.fed(images[0]), images[1]
        found = audit(model, images, num_images=wanted.most or _USUAL_IMAGES)
        found.print_to(console, only_findings=arguments.only_findings)
        if note is not None:
            say(console, f"Note: {note}", style="yellow")
        write_outputs(arguments, page=found.write_page, csv=found.write_csv)
    return not (arguments.strict and found.verdict is Verdict.BROKEN)


def _fed_range(model: "keras.Model", policy: BitPolicy) -> InputRange:
    """The input range of a model: a quantized one has its own, a float one that of the policy.

    Raises:
        ValueError: a range is given for a quantized model of another one.
    """
    from sat_tf.graph.network import Network
    from sat_tf.qat.inputs import input_nodes, input_ranges

    network = Network(model)
    name, asked = network.inputs[0], policy.range_of(network.inputs[0])
    if name not in input_nodes(network):
        return asked
    own = input_ranges(network).get(name, PIXELS)
    if policy.states_input_range and asked != own:
        raise ValueError(
            f"--input_range: received {asked} for a quantized model that is fed {own}, expected it "
            "for a float one; leave it out."
        )
    return own


def _images(
    arguments: argparse.Namespace, wanted: ImageOptions, model: "keras.Model"
) -> tuple[Any, Any] | None:
    """The images to measure on, with their labels; None if none are asked for."""
    from sat_tf.training.config.config import read_config

    if wanted.is_given:
        found = wanted.load(fixed_input_shape(model), model.output_shape[-1])
        return found.images, found.labels
    path = pathlib.Path(arguments.model)
    if not (path / CONFIG).is_file():
        return None
    from sat_tf.training.loop.start import load_source

    source = load_source(read_config(path / CONFIG))
    return source.held_out_sample(arguments.num_images or _USUAL_IMAGES)
