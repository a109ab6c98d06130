"""`sat-tf explain`."""

import argparse
import pathlib

from rich.console import Console

from sat_tf.commands.models import (
    add_model_argument,
    add_model_sizes,
    is_built_by_name,
    model_maker,
    quiet_tensorflow,
)
from sat_tf.commands.options import (
    add_input_range,
    add_outputs,
    add_policy,
    add_target,
    check_outputs,
    policy_fields,
    read_policy,
    write_outputs,
)
from sat_tf.commands.parser import Parser
from sat_tf.messages import value_errors_as_run_errors
from sat_tf.training.state.run_folder import CONFIG

DESCRIPTION = """\
A dry run: nothing is trained, quantized or written. For each layer of a model it says
  how its weights and its output are quantized, with how many bits, and why, or why not
  which quantizers are inserted between layers
  how it gets into the TFLite file: as integers, fused into another, float, or not at all
  its parameters, multiply-adds, bit operations (BOPs) and bytes
and, where the model cannot be quantized, every reason with its fix. With --target it names every
operator of the file that an NPU would leave to the CPU, why, and what to change."""
EXAMPLES = """\
examples:
  sat-tf explain model.keras
  sat-tf explain model.keras --policy weight_bits=2 activation_bits=3
  sat-tf explain model.h5 --policy policy.yaml unsupported=float --page plan.html
  sat-tf explain model.keras --input_range 0,1
  sat-tf explain model.keras --target ethos-u55
  sat-tf explain runs/digits_mobilenet_v2_w4a4 --diagram plan.svg
  sat-tf explain mobilenet_v2 --image_size 96 --csv plan.csv
  sat-tf explain keras.applications:MobileNetV3Small --policy unsupported=float --diagram plan.png

policy.yaml holds fields of sat_tf.BitPolicy, such as `weight_bits: 4`, or is the configuration of a
run, which has them under `policy`. Fields that are not given are those of BitPolicy(), or of a run.

exit status: 0; 1 if the model cannot be quantized as asked; 2 if something cannot be read.
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    add_model_argument(parser)
    add_policy(parser)
    add_input_range(parser)
    add_target(parser, default="the policy's, or litert")
    add_model_sizes(parser, "of a model given by its name (default: 224), or of open image sizes")
    add_outputs(
        parser,
        page="write a page with the diagram (HTML)",
        diagram="draw the graph (.svg or .png)",
        csv="write the full table as CSV",
    )


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for; False if the model cannot be quantized as asked."""
    name = arguments.model
    folder = pathlib.Path(name)
    policy = read_policy(arguments.policy, folder / CONFIG, policy_fields(arguments))
    size = None
    if not is_built_by_name(name):
        size, arguments.image_size = arguments.image_size, None
    make = model_maker(arguments, "explain")
    with value_errors_as_run_errors():
        check_outputs(arguments)
    quiet_tensorflow()
    from sat_tf.planning.explain import explain

    with value_errors_as_run_errors():
        plan = explain(make(), policy, image_size=size)
        plan.print_to(console)
        write_outputs(
            arguments, page=plan.write_page, diagram=plan.write_diagram, csv=plan.write_csv
        )
    return not plan.problems
