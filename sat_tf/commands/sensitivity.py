"""`sat-tf sensitivity`."""

import argparse
from typing import Annotated

from pydantic import Field
from rich.console import Console

from sat_tf.commands.images import USUAL_IMAGES, add_image_arguments, image_options, images_as_fed
from sat_tf.commands.models import add_model_argument, analysed_model
from sat_tf.commands.options import add_outputs, write_outputs
from sat_tf.commands.parser import Parser
from sat_tf.commands.policy import add_quantization, usual_policy
from sat_tf.messages import RunError
from sat_tf.messages.validation import option

DESCRIPTION = """\
Quantizes one layer of a float model at a time, its kernel and what it reads, keeps others float,
and measures what is lost: top-1 if the images have labels, the distance of the outputs, and the
divergence of the class probabilities. Nothing is trained."""
EXAMPLES = """\
examples:
  sat-tf sensitivity model.keras --images photos/ --bits 4
  sat-tf sensitivity model.keras --images photos/ --bits 3 --out layers.csv --out layers.svg
  sat-tf sensitivity model.keras --images photos/ --bits 3 --average_bits 4

exit status: 0; 2 if something cannot be read or measured.
"""

_MeanBits = Annotated[float, Field(ge=1, le=8, description="a number from 1 to 8")]
_Drop = Annotated[float, Field(ge=0, allow_inf_nan=False, description="a number of 0 or more")]


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    add_model_argument(parser)
    add_image_arguments(parser, usual=str(USUAL_IMAGES))
    add_quantization(parser)
    parser.advanced.add_argument(
        "--metric",
        choices=("top1", "distance", "divergence"),
        help="what layers are ranked by; default: top1 with labels, distance without",
    )
    parser.add_argument(
        "--average_bits",
        metavar="X",
        type=option(_MeanBits),
        help="suggest overrides of the policy that keep the mean number of bits within X",
    )
    parser.add_argument(
        "--max_drop",
        metavar="X",
        type=option(_Drop),
        help="suggest layers for 8 bits so that at most X is lost; top-1 is a share: 0.01 is 1 %%",
    )
    add_outputs(parser, csv="the full table", svg="a chart", png="a chart")


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Does what the arguments ask for."""
    options = image_options(arguments)
    if arguments.average_bits is not None and arguments.max_drop is not None:
        raise RunError("received --average_bits and --max_drop, expected one; leave one out.")
    policy = usual_policy(arguments)
    with analysed_model(arguments, "sensitivity") as model:
        from sat_tf.analysis.sensitivity import sensitivity

        dataset, policy = images_as_fed(model, arguments.model, options, policy, console)
        sensitivities = sensitivity(
            model, dataset, policy, metric=arguments.metric, num_images=options.most or USUAL_IMAGES
        )
        sensitivities.print_to(console)
        write_outputs(
            arguments,
            csv=sensitivities.write_csv,
            svg=sensitivities.write_picture,
            png=sensitivities.write_picture,
        )
        if arguments.average_bits is not None or arguments.max_drop is not None:
            overrides = sensitivities.suggest(
                max_drop=arguments.max_drop, average_bits=arguments.average_bits
            )
            if not overrides:
                console.print("No overrides are suggested: the policy already meets it.")
                return
            console.print("Suggested, for BitPolicy(overrides=...):")
            rows = (f"    {name!r}: {fields},\n" for name, fields in overrides.items())
            console.print("{\n" + "".join(rows) + "}", highlight=False, markup=False)
