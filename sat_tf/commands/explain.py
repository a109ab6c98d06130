"""`sat-tf explain`."""

import argparse
import pathlib

from rich.console import Console

from sat_tf.commands import models
from sat_tf.commands.images import add_pictures, expect_pictures, range_sample
from sat_tf.commands.options import add_outputs, write_outputs
from sat_tf.commands.parser import Parser
from sat_tf.commands.policy import add_quantization, asked_policy, with_input_range
from sat_tf.commands.quantize import expect_float
from sat_tf.exact.tflite.input_range import INPUT_TYPES
from sat_tf.messages import RunError, say
from sat_tf.output_folder import CONFIG
from sat_tf.qat.policy import BitPolicy

DESCRIPTION = """\
A dry run: nothing is trained or quantized. For each layer of a model it says
  how its weights and its output are quantized, with how many bits, and why, or why not
  which quantizers are inserted between layers
  how it gets into the TFLite file: as integers, fused into another, float, or not at all
  its parameters, multiply-adds, bit operations (BOPs) and bytes
and, where the model cannot be quantized, every reason with its fix. With --target it names every
operator of the file that an NPU would leave to the CPU, why, and what to change."""
EXAMPLES = """\
examples:
  sat-tf explain model.keras --images photos/ --bits 4
  sat-tf explain model.keras --input_range 0,1
  sat-tf explain model.h5 --policy policy.yaml --unsupported float --out plan.html
  sat-tf explain model.keras --target ethos-u55
  sat-tf explain runs/digits_mobilenet_v2_w4a4 --out plan.json
  sat-tf explain keras.applications:MobileNetV2 --image_size 96 --out plan.csv
  sat-tf explain keras.applications:MobileNetV3Small --unsupported float

The plan is that of `sat-tf quantize` with the same words. policy.yaml holds fields of
sat_tf.BitPolicy, such as `weight_bits: 4`, or is the configuration of a run, which has them under
`policy`.

exit status: 0; 1 if the model cannot be quantized as asked; 2 if something cannot be read.
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    models.add_model_argument(parser)
    add_pictures(parser, "; by them the input range is found")
    add_quantization(parser, target="the policy's, or litert")
    models.add_image_size(
        parser, "of a model given by its name (default: 224), or of open image sizes"
    )
    add_outputs(parser, html="a page", csv="the full table")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for; False if the model cannot be quantized as asked."""
    name = arguments.model
    policy = asked_policy(arguments, pathlib.Path(name) / CONFIG)
    size = None
    if not models.is_built_by_name(name):
        size, arguments.image_size = arguments.image_size, None
    expect_pictures(arguments.images, arguments.labels)
    with models.analysed_model(arguments, "explain") as model:
        from sat_tf.graph.network import Network
        from sat_tf.graph.rewrite import network_of_layers
        from sat_tf.planning.explain import explain
        from sat_tf.qat.inputs import converts_pixels
        from sat_tf.qat.layout import is_quantized

        is_pixels = False
        if is_quantized(Network(model)):
            if arguments.images is not None:
                raise RunError(
                    f"--images: received {arguments.images} for a quantized model, which has its "
                    "own input range; expected it for a float one; leave it out."
                )
        else:
            policy = policy or BitPolicy.mobile()
            is_stated = policy.states_input_range or models.is_built_by_name(name)
            is_pixels = arguments.images is None and not is_stated
            if arguments.images is not None:
                expect_float(pathlib.Path(name), model)
                # These are the pictures that `sat-tf quantize` looks at.
                sample = range_sample(model, arguments.images, policy, arguments.labels)
                policy = with_input_range(policy, model, name, sample, console)
        plan = explain(model, policy, image_size=size)
        plan.print_to(console)
        if is_pixels and not plan.problems:
            network, policy = network_of_layers(model), plan.policy
            # Neither the policy nor the model says what these are.
            guessed = [
                name
                for name in network.inputs
                if policy.type_of(name) == INPUT_TYPES[0]
                and not (name in plan.kept or converts_pixels(network, name))
                and not (policy.states_type_of(name) or policy.states_range_of(name))
            ]
            note = (
                "Note: the model is taken to be fed pixels, 0 to 255; --images finds its range as "
                "sat-tf quantize does, --input_range gives it, and --policy input_type=int8 (or "
                "float32) says that it is fed no pixels."
            )
            if guessed:
                say(console, note, style="yellow")
        write_outputs(arguments, html=plan.write_page, csv=plan.write_csv)
    return not plan.problems
