"""`sat-tf quantize`."""

import argparse
import json
import math
import pathlib
from typing import TYPE_CHECKING

from rich.console import Console

from sat_tf import output_folder
from sat_tf.commands.models import quiet_tensorflow, read_keras_model
from sat_tf.commands.options import (
    OWN_TYPE,
    add_output_type,
    add_overrides,
    add_resume,
    add_trust,
    integer,
    nonempty,
    number,
    seed,
)
from sat_tf.commands.parser import Parser
from sat_tf.commands.pixels import add_pictures, expect_pictures, fixed_input_shape
from sat_tf.commands.quantization.calibrated import write_calibrated
from sat_tf.commands.quantization.ending import print_ending
from sat_tf.commands.quantization.pictures import (
    CALIBRATION_IMAGES,
    CROPS,
    HELD_OUT_IMAGES,
    Pictures,
    find_pictures,
)
from sat_tf.commands.quantization.policy import add_quantization, usual_policy, with_input_range
from sat_tf.commands.train import carry_out, conclude_folder
from sat_tf.messages import RunError, say, value_errors_as_run_errors
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.config.config import Config, parse_config
from sat_tf.training.config.folder import run_name
from sat_tf.training.config.sections import AUTO, TRIED_RATES, StageConfig
from sat_tf.training.data.source import ImageSource
from sat_tf.training.state.run_folder import RunFolder

if TYPE_CHECKING:
    import tf_keras as keras


_BATCH_SIZE = 32
_OF_STAGE = {"batch_size", "warmup_learning_rate", "base_learning_rate"}
# A calibrated model of so many bits and fewer is fitted to the float one.
_MOST_RECONSTRUCTED = 4

DESCRIPTION = (
    "Quantizes a trained float model: calibrates it on pictures, at 4 bits and fewer also fits it "
    "to the float model block by block, and with --epochs trains it with the float model as its "
    "teacher; writes an integer TFLite file, and proves that LiteRT computes the model's integers. "
    "Where pictures are in folders of classes, some are held out, and the accuracy of the float "
    "model, the quantized one and the file is measured on them. Training without labels measures "
    "agreement instead: for how many pictures a model gives the class that the float model gives."
)
EXAMPLES = """\
examples:
  sat-tf quantize model.keras --images photos/
  sat-tf quantize model.keras --images photos/ --bits 4
  sat-tf quantize model.keras --images photos/ --bits 4 --epochs 5
  sat-tf quantize model.keras --images photos/ --input_range=-1,1 --out app/model
  sat-tf quantize model.keras --images photos/ --target ethos-u55
  sat-tf quantize model.keras --images pixels.npy --labels labels.npy
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a trained float model: a .keras or .h5 file of Keras 2 or 3, or a SavedModel",
    )
    add_pictures(parser, "", required=True)
    add_quantization(parser)
    parser.add_argument(
        "--epochs",
        metavar="N",
        type=integer(0, expected="an integer, 0 or more"),
        help="of training, on the labels of folders of classes and the answers of the float model, "
        "without labels on its answers alone; default: no training. Models of "
        f"{_MOST_RECONSTRUCTED} bits and fewer are first reconstructed, without labels, unless N "
        "is 0",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=nonempty,
        help="where the files go; default: runs/<model>_w<N>a<N>",
    )
    parser.advanced.add_argument(
        "--learning_rate",
        metavar="N",
        type=number("a positive number", lambda rate: 0 < rate < math.inf),
        help="where the learning rate of the training starts to fall; default: one of "
        f"{TRIED_RATES[0]:g} to {TRIED_RATES[-1]:g}, chosen by a short trial",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print what certificate.html and report.html show: each runtime, the tensors "
        "whose codes differ, ties, and where the proof holds",
    )
    add_output_type(parser, default=OWN_TYPE)
    add_resume(parser)
    parser.advanced.add_argument(
        "--seed", metavar="N", type=seed, default=0, help="of all that is drawn; default: 0"
    )
    add_overrides(parser.advanced, "change one setting of the training, as in sat-tf train")
    add_trust(parser)


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for."""
    path, images = pathlib.Path(arguments.model), pathlib.Path(arguments.images)
    if not path.exists():
        raise RunError(f"{path}: not found; expected a Keras model, or a SavedModel.")
    expect_pictures(arguments.images, arguments.labels)
    if any(one.startswith("policy") for one in arguments.overrides):
        raise RunError(
            f"--set: received {' '.join(arguments.overrides)}, expected settings of the training; "
            "give fields of the policy as --policy KEY=VALUE."
        )
    policy = usual_policy(arguments)
    name = f"{run_name(path.stem, 'model')}_w{policy.weight_bits}a{policy.activation_bits}"
    # The fewer ones cost accuracy.
    arguments.bits = min(policy.weight_bits or 8, policy.activation_bits or 8)
    folder = RunFolder(pathlib.Path(arguments.out or pathlib.Path("runs") / name))
    folder.check_writable()
    if arguments.overrides:
        _config(arguments, policy, name)  # refuses wrong ones before anything is loaded
    say(console, f"Reading {path}")
    quiet_tensorflow()
    advice = "expected a float model that Keras has saved; save it with model.save('model.keras')."
    model = read_keras_model(path, advice, trust=arguments.trust_model)
    with value_errors_as_run_errors(path):
        expect_float(path, model)
        found = find_pictures(
            images,
            model,
            policy,
            console,
            to_train=bool(arguments.epochs or arguments.overrides),
            labels=arguments.labels,
        )
        doubts: list[str] = []
        policy = with_input_range(
            policy, model, str(path), found.held_out_sample, console, doubts=doubts
        )
        if not isinstance(found, Pictures):
            _run(arguments, model, policy, found, (name, folder), console)
        elif arguments.epochs or arguments.overrides:
            raise RunError(
                f"{path}: received {found.why_not}, expected one to train: of a folder of "
                "square colour images and one output, a row of the logits or probabilities of "
                "classes; leave out --epochs and --set."
                + (
                    f" {arguments.bits} bits are then reconstructed from the float model."
                    if arguments.bits <= _MOST_RECONSTRUCTED
                    else ""
                )
            )
        else:
            write_calibrated(
                model,
                policy,
                found,
                folder,
                console,
                steps=_steps(arguments),
                seed=arguments.seed,
                output_type=arguments.output_type,
                resume=arguments.resume,
                is_verbose=arguments.verbose,
            )
    is_done = isinstance(found, Pictures) or folder.file(output_folder.RESULTS).exists()
    if is_done:
        why_not = found.why_not if isinstance(found, Pictures) else ""
        print_ending(arguments.bits, folder, why_not, console)
    for doubt in doubts:  # what stands far above is easily passed over
        _note(doubt, console)
    return conclude_folder(folder, console)


def _steps(arguments: argparse.Namespace) -> int:
    """The steps of reconstruction for each block; 0 with --epochs 0, or where bits suffice."""
    from sat_tf.qat.reconstruction.reconstruct import STEPS

    few = arguments.bits <= _MOST_RECONSTRUCTED
    return STEPS if few and arguments.epochs != 0 else 0


def _note(text: str, console: Console) -> None:
    say(console, f"Note: {text}", style="yellow")


def expect_float(path: pathlib.Path, model: "keras.Model") -> None:
    """Raises an error unless a model is a float one that takes pictures."""
    from sat_tf.graph.network import Network, check_model
    from sat_tf.qat.layout import is_quantized

    check_model(model)
    network = Network(model)
    if len(network.inputs) > 1:
        raise RunError(
            f"{path}: received a model with {len(network.inputs)} inputs "
            f"({', '.join(network.inputs)}), expected one, which takes the pictures; quantize it "
            "in Python: q = sat_tf.quantize_model(model, policy), sat_tf.calibrate(q, [one, "
            "other]), sat_tf.export_tflite(q, path)."
        )
    if is_quantized(network):
        raise RunError(
            f"{path}: received a model that is quantized already, expected a float one; write its "
            "file with sat-tf export."
        )
    fixed_input_shape(model, str(path))


def _run(
    arguments: argparse.Namespace,
    model: "keras.Model",
    policy: BitPolicy,
    source: ImageSource,
    run: tuple[str, RunFolder],
    console: Console,
) -> None:
    """Trains or calibrates, exports and verifies as a run of `sat-tf train`."""
    from sat_tf.training.state.classifier_file import ends_in_softmax

    (name, folder), epochs = run, arguments.epochs or 0
    is_labelled, has_softmax = source.num_classes > 0, ends_in_softmax(model)
    if not is_labelled:
        teacher = "the float model is the only teacher, and " if epochs else ""
        say(console, f"No labels: {teacher}agreement is the share of the float model's answers.")
        if not has_softmax:
            _note(
                "the outputs are taken for logits of classes, which nothing in the model tells "
                "from coordinates and other values; leave out --epochs where they are such.",
                console,
            )
    config = _config(
        arguments,
        policy,
        name,
        image_size=source.image_size,
        is_labelled=is_labelled,
        has_softmax=has_softmax,
        batch_size=min(_BATCH_SIZE, source.num_train),
        steps=_steps(arguments),
    )
    carry_out(config, folder, console, resume=arguments.resume, is_verbose=arguments.verbose)


def _config(
    arguments: argparse.Namespace,
    policy: BitPolicy,
    name: str,
    *,
    image_size: int = 32,
    is_labelled: bool = True,
    has_softmax: bool = False,
    batch_size: int = _BATCH_SIZE,
    steps: int = 0,
) -> Config:
    """The configuration of a run, of which pictures and model tell what has a default here.

    Raises:
        RunError: see `parse_config`.
    """
    epochs, rate = arguments.epochs or 0, arguments.learning_rate
    stage = StageConfig(batch_size=batch_size, warmup_learning_rate=0.0, base_learning_rate=AUTO)
    if rate is not None:
        stage = stage.with_peak(rate)
    values = {
        "name": name,
        "seed": arguments.seed,
        "data": {
            "name": "folder",
            "options": {
                "data_dir": str(arguments.images),
                "image_size": image_size,
                **CROPS,
                **({} if is_labelled else {"labelled": False}),
            },
        },
        "policy": policy.to_dict(),
        "stages": {
            "float": stage.model_dump(include=_OF_STAGE),
            "quantized": {"epochs": epochs, "warmup_epochs": epochs / 10},
        },
        "calibration": {
            "num_images": CALIBRATION_IMAGES,
            "final_statistics": True,
            "reconstruction_steps": steps,
        },
        "export": {
            "softmax": has_softmax,
            "output_type": arguments.output_type,
            "verify_images": HELD_OUT_IMAGES,
        },
        "training": {
            "start": "vanilla",
            "float_model": str(arguments.model),
            "trust_model": arguments.trust_model,
        },
        "recipes": {"distillation": {} if is_labelled else {"weight": 1.0}} if epochs else {},
    }
    # JSON is YAML.
    return parse_config(json.dumps(values), arguments.overrides, subject="--set")
