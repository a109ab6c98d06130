"""`sat-tf allocate`."""

import argparse
from typing import Any

from rich.console import Console

from sat_tf.analysis.allocation.budget import LIMITS, NAMES, read_budget
from sat_tf.commands.images import USUAL_IMAGES, add_image_arguments, image_options, images_as_fed
from sat_tf.commands.models import add_model_argument, analysed_model
from sat_tf.commands.options import PACKS, add_outputs, several, write_outputs
from sat_tf.commands.parser import Parser
from sat_tf.commands.policy import add_quantization, bits, usual_policy
from sat_tf.exact.targets.ethos_u import compiler_options
from sat_tf.messages import REMOVED, ProblemsError, RunError, problems_of, say

DESCRIPTION = """\
Chooses weight and activation bits for each layer of a float model, so that the estimated loss is
the least that any choice within the budget has. The choice is solved exactly, and the proof is
printed. Nothing is trained, and the model is not changed. First and last layers, streams, images
and bits that the policy gives single layers stay as they are."""
_LIMIT_LINES = "\n".join(
    f"  {name:24}{LIMITS[name].meaning}" if name in LIMITS else f"  {name:24}both of the two above"
    for name in NAMES
)
EXAMPLES = f"""\
examples:
  sat-tf allocate model.keras --images photos/ --budget bytes=500000 --out policy.yaml
  sat-tf allocate model.keras --images photos/ --budget average_bits=4
  sat-tf allocate model.keras --images photos/ --budget bytes=60% average_activation_bits=5 \\
      --bits 2,4,8 --out layers.csv
  sat-tf allocate model.keras --images photos/ --npu ethos-u55-128 --budget milliseconds=60%

limits, each a number, or a share such as 60% of what the most bits need:
{_LIMIT_LINES}

policy.yaml holds fields of sat_tf.BitPolicy: BitPolicy(**yaml.safe_load(file)) in Python,
  sat-tf quantize model.keras --images photos/ --policy policy.yaml
  sat-tf train --config run.yaml --set "policy=$(cat policy.yaml)"

exit status: 0; 2 if something cannot be read or measured, or no choice keeps the budget.
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    add_model_argument(parser)
    parser.add_argument(
        "--budget",
        metavar="LIMIT=VALUE",
        nargs="+",
        required=True,
        help=f"what the model may use at most: {', '.join(NAMES)}; see below",
    )
    parser.refused = {
        "--cost": REMOVED["allocate.cost"],
        "--latency": "use --npu ethos-u55-128 or another Ethos-U, whose compiler estimates "
        "milliseconds",
        "--seconds": "use fewer --bits, which are proven sooner",
    }
    parser.add_argument(
        "--npu",
        metavar="NAME[,SYSTEM,MODE]",
        help="an Ethos-U, such as ethos-u55-128, whose compiler estimates milliseconds; SYSTEM and "
        "MODE are its system configuration and memory mode",
    )
    parser.add_argument(
        "--bits",
        metavar="N,N,...",
        dest="choices",
        type=several(bits),
        default=tuple(range(2, 9)),
        help="of weights and activations, to choose from; default: 2,3,4,5,6,7,8",
    )
    parser.advanced.add_argument(
        "--activation_bits",
        metavar="N,N,...",
        type=several(bits),
        help="of activations, to choose from; default: those of --bits",
    )
    parser.advanced.add_argument(
        "--pack",
        metavar="|".join(PACKS[:-1]),
        choices=PACKS[:-1],  # the bytes of tables depend on the values of weights
        default="auto",
        help="how the file stores kernels, as for sat-tf export: auto, none, int4 or int2; "
        "default: auto",
    )
    add_quantization(parser, chosen=True)
    add_image_arguments(parser, usual=str(USUAL_IMAGES))
    add_outputs(parser, yaml="the policy", csv="the layers")


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Does what the arguments ask for."""
    options = image_options(arguments)
    policy = usual_policy(arguments)
    budget: dict[str, Any] = {}
    problems = []
    for word in arguments.budget:
        name, equals, text = word.partition("=")
        if not equals or name in budget:
            problems.append(f"{word!r}: expected LIMIT=VALUE, such as bytes=500000, once for each.")
        try:
            budget[name] = text if text.endswith("%") else float(text)
        except ValueError:
            budget[name] = text
    if problems:
        raise RunError(ProblemsError("--budget", problems))
    npu = None
    if arguments.npu:
        words = arguments.npu.split(",")
        if len(words) not in (1, 3):
            raise RunError(
                f"--npu: received {arguments.npu!r}, expected the name of a configuration, alone "
                "or with those of a system configuration and a memory mode, commas between them."
            )
        keys = ("configuration", "system_config", "memory_mode")
        npu = dict(zip(keys, words, strict=False))
        try:
            compiler_options(**npu)  # which the compiler is called with for each layer
        except (ValueError, ImportError) as error:  # the compiler is an extra
            raise RunError(f"--npu: {error}") from error
    try:
        read_budget(budget, npu=npu is not None)
    except ValueError as error:
        raise RunError(ProblemsError("--budget", problems_of(error))) from error
    with analysed_model(arguments, "allocate") as model:
        from sat_tf.analysis.allocation.allocation import allocate

        dataset, policy = images_as_fed(model, arguments.model, options, policy, console)
        allocation = allocate(
            model,
            dataset,
            policy,
            budget=budget,
            npu=npu,
            weight_bits=arguments.choices,
            activation_bits=arguments.activation_bits or arguments.choices,
            pack=arguments.pack,
            num_images=options.most or USUAL_IMAGES,
        )
        allocation.print_to(console)
        write_outputs(arguments, yaml=allocation.write_policy, csv=allocation.write_csv)
    for path in arguments.out:
        say(console, f"Written: {path}")
