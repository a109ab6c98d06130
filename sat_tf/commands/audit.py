"""`sat-tf audit`."""

import argparse
import pathlib

import numpy as np
from rich.console import Console

from sat_tf.commands import images, models
from sat_tf.commands.options import add_outputs, write_outputs
from sat_tf.commands.parser import Parser
from sat_tf.commands.policy import Sample, add_input_range, with_input_range
from sat_tf.exact.certificate.proof_images import ImagesFrom
from sat_tf.exact.tflite.input_range import PIXELS
from sat_tf.output_folder import CONFIG
from sat_tf.qat.policy import BitPolicy

DESCRIPTION = """\
Checks an image model, quantized or not, against the rules of efficient training, and says for each
linear layer what is wrong and what to do:
  rule I   the classifier's weights are small: kappa_0 below 0.1; from 1 on the softmax saturates
  rule II  gradients keep their size from layer to layer: normalization right after each layer, or
           weights of variance 1/n; kappa_1 and kappa_2 near 1
and that weights and activations use their codes, and clipping levels cut off only the tail.
Without images only the weights are audited; with labelled ones, gradients too."""
EXAMPLES = """\
examples:
  sat-tf audit model.keras
  sat-tf audit model.keras --images photos/ --out audit.html
  sat-tf audit runs/digits_mobilenet_v2_w4a4
  sat-tf audit keras.applications:MobileNetV2 --image_size 96 --images photos/
  sat-tf audit keras.applications:ResNet50 --out audit.csv

exit status: 0; with --strict 1 if a rule is broken; 2 if something cannot be read or audited.
"""

_USUAL_IMAGES = 32


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    models.add_model_argument(parser)
    images.add_image_arguments(
        parser, default="none; for a run, its held-out images", usual=str(_USUAL_IMAGES)
    )
    models.add_image_size(parser)
    add_input_range(parser)
    parser.refused = dict.fromkeys(
        ("--bits", "--policy", "--target", "--unsupported"),
        "it audits a model as it is; sat-tf quantize has this option, and the quantized.keras that "
        "it writes can be audited",
    )
    add_outputs(parser, html="a page of the tables", csv="the full table")
    parser.advanced.add_argument(
        "--strict", action="store_true", help="exit with status 1 if a rule is broken"
    )


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for; False where --strict finds a broken rule."""
    options = images.image_options(arguments, usual=_USUAL_IMAGES)
    count, subject = options.most or _USUAL_IMAGES, arguments.model
    with models.analysed_model(arguments, "audit") as model:
        from sat_tf.graph.network import Network, check_model, check_one_of_each
        from sat_tf.qat.inputs import input_nodes, input_ranges
        from sat_tf.training.audit.audit import audit
        from sat_tf.training.audit.audited_model import Verdict
        from sat_tf.training.config import read_config

        check_model(model)
        input_range, pixels, data = arguments.input_range, None, None
        policy = BitPolicy() if input_range is None else BitPolicy(input_range=input_range)
        config = pathlib.Path(subject) / CONFIG
        if options.images is not None:
            check_one_of_each(model)
            pixels = options.load(images.fixed_input_shape(model), model.output_shape[-1])
            images.say_notes(pixels.notes, console)
        elif config.is_file():
            from sat_tf.training.loop.start import load_source

            source = load_source(read_config(config))
            pixels = images.Pixels(*source.held_out_sample(count), ImagesFrom(source.name))
        if pixels is not None:
            fed = pixels.images
            if fed.dtype == np.uint8:
                network = Network(model)
                name = network.inputs[0]
                if name in input_nodes(network):  # of a quantized model, which has its own range
                    fed_range = input_ranges(network).get(name, PIXELS)
                    if policy.states_input_range and policy.range_of(name) != fed_range:
                        raise ValueError(
                            f"--input_range: received {policy.range_of(name)} for a quantized "
                            f"model that is fed {fed_range}, expected it for a float one; leave it "
                            "out."
                        )
                else:
                    if not models.is_built_by_name(subject):
                        sample: Sample = pixels.sample
                        if options.images is not None:
                            sample = images.range_sample(
                                model, options.images, policy, options.labels
                            )
                        policy = with_input_range(
                            policy, model, subject, sample, console, is_trained=False
                        )
                    fed_range = policy.range_of(name)
                fed = fed_range.fed(fed)
            data = fed, pixels.labels
        result = audit(model, data, num_images=count)
        result.print_to(console)
        write_outputs(arguments, html=result.write_page, csv=result.write_csv)
    return not (arguments.strict and result.verdict is Verdict.BROKEN)
