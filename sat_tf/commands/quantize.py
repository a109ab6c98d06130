"""`sat-tf quantize`."""

import argparse
import pathlib
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from sat_tf.commands import options
from sat_tf.commands.images import add_pictures, expect_pictures, find_pictures, fixed_input_shape
from sat_tf.commands.models import quiet_tensorflow, read_keras_model
from sat_tf.commands.parser import Parser
from sat_tf.commands.policy import add_quantization, usual_policy, with_input_range
from sat_tf.commands.verification_table import conclude
from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.certificate.rules import sentence
from sat_tf.messages import RunError, say, value_errors_as_run_errors
from sat_tf.messages.tables import Marked, marked_text, points
from sat_tf.messages.validation import Count, PositiveNumber, Share, option
from sat_tf.output_folder import (
    C_ARRAY,
    C_HEADER,
    CERTIFICATE_PAGE,
    QUANTIZED_MODEL,
    REPORT,
    TFLITE_MODEL,
    OutputFolder,
    run_name,
)
from sat_tf.report.results import Results

if TYPE_CHECKING:
    import tf_keras as keras

# A calibrated model of this many bits or fewer is fitted to the float one.
_MOST_RECONSTRUCTED = 4
# A network without training loses accuracy with fewer bits.
_FEWEST_WITHOUT_TRAINING = 7
# A smaller loss of top-1 is no reason to train.
_SMALL_LOSS = 0.005
_LABEL_WIDTH = 10

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
  sat-tf quantize model.keras --images photos/ --bits 4 --target micro --pack table
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
        type=option(Count),
        help="of training, on the labels of folders of classes and the answers of the float model, "
        "without labels on its answers alone; default: no training. Models of "
        f"{_MOST_RECONSTRUCTED} bits and fewer are first reconstructed, without labels, unless N "
        "is 0",
    )
    options.add_name(parser, "--out", "DIR", "where the files go; default: runs/<model>_w<N>a<N>")
    parser.advanced.add_argument(
        "--learning_rate",
        metavar="N",
        type=option(PositiveNumber),
        help="where the learning rate of the training starts to fall; default: one of 0.0001 to "
        "0.03, chosen by a short trial",
    )
    parser.advanced.add_argument(
        "--transition_rate",
        metavar="N",
        type=option(Share),
        help="schedule the share of a kernel's weights that change their code in a step, at first "
        "N times the root of the bits, such as 0.01, in place of the trial",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print what certificate.html and report.html show: each runtime, the tensors "
        "whose codes differ, ties, and where the proof holds",
    )
    options.add_output_type(parser, default=options.OWN_TYPE)
    options.add_pack(parser, default="auto", usual="auto")
    options.add_resume(parser)
    parser.advanced.add_argument(
        "--seed", metavar="N", type=options.seed, default=0, help="of all that is drawn; default: 0"
    )
    parser.refused = {
        "--set": "give --learning_rate and --seed; all settings of a training are those of "
        "sat-tf train, whose training.float_model takes a trained model",
    }
    options.add_trust(parser)


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for."""
    path, images = pathlib.Path(arguments.model), pathlib.Path(arguments.images)
    if not path.exists():
        raise RunError(f"{path}: not found; expected a Keras model, or a SavedModel.")
    expect_pictures(arguments.images, arguments.labels)
    policy = usual_policy(arguments)
    name = f"{run_name(path.stem, 'model')}_w{policy.weight_bits}a{policy.activation_bits}"
    # The smaller number of bits decides the loss of accuracy.
    arguments.bits = min(policy.weight_bits or 8, policy.activation_bits or 8)
    folder = OutputFolder(pathlib.Path(arguments.out or pathlib.Path("runs") / name))
    with folder.opened():  # which refuses a folder that cannot be written to
        say(console, f"Reading {path}")
    quiet_tensorflow()
    advice = "expected a float model that Keras has saved; save it with model.save('model.keras')."
    model = read_keras_model(path, advice, trust=arguments.trust_model)
    from sat_tf.commands.quantization import QuantizationRun
    from sat_tf.export.lowering.packing import FileSettings
    from sat_tf.qat.reconstruction.fit import row_of
    from sat_tf.qat.reconstruction.reconstruct import STEPS
    from sat_tf.report.report import headline_of

    with value_errors_as_run_errors():
        of_file = {name: getattr(arguments, name) for name in ("pack", "output_type")}
        FileSettings(target=policy.processor.name, **of_file)
    epochs = arguments.epochs or 0
    is_reconstructed = arguments.bits <= _MOST_RECONSTRUCTED and arguments.epochs != 0
    with value_errors_as_run_errors(path):
        expect_float(path, model)
        row, why_not = row_of(model)
        if epochs and why_not:
            raise RunError(
                f"{path}: received {why_not}, expected one to train: of one output, a row of the "
                "logits or probabilities of classes; leave out --epochs."
            )
        pictures = find_pictures(
            images, model, policy, console, to_train=bool(epochs), labels=arguments.labels
        )
        policy = with_input_range(policy, model, str(path), pictures.held_out.sample, console)
        certificate, results = QuantizationRun(
            model=model,
            policy=policy,
            pictures=pictures,
            folder=folder,
            console=console,
            steps=STEPS if is_reconstructed else 0,
            row=row,
            arguments=arguments,
        ).write()
    headline = headline_of(certificate, results) or certificate.verdict
    names = (TFLITE_MODEL, C_ARRAY, C_HEADER, CERTIFICATE_PAGE, REPORT, QUANTIZED_MODEL)
    tflite, *beside = (folder.file(name) for name in names if folder.file(name).exists())
    advice = next_step(arguments.bits, headline, results, why_not, is_exact=certificate.is_exact)
    # Nothing tells which answers are right without labels.
    is_measured = results is not None and results.gained is not None
    lines: dict[str, str | Marked] = {
        "Accuracy" if is_measured else "Answers": accuracy(certificate, results),
        "Size": f"{certificate.bytes:,} bytes, {certificate.gzip_bytes:,} after gzip",
        "Proof": headline,
        "Next": advice,
        "Files": f"{tflite} for the device; beside it {', '.join(file.name for file in beside)}",
    }
    for label, words in lines.items():
        say(console, Text.assemble(f"{label + ':':{_LABEL_WIDTH}}", marked_text(words)))
    return conclude(tflite, headline, console)


def expect_float(path: pathlib.Path, model: "keras.Model") -> None:
    """Raises an error unless a model is a float one that takes pictures."""
    from sat_tf.graph.network import Network
    from sat_tf.qat.layout import is_quantized

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


# -- the last lines ----------------------------------------------------------------------------


def accuracy(certificate: Certificate, results: Results | None) -> str:
    """The accuracy of the file and of the float model, or how near their outputs are."""
    if results is not None and results.shipped is not None and results.float_top1 is not None:
        top1, float_top1 = results.shipped.share, results.float_top1
        return (
            f"{100 * top1:.2f} % of {results.held_out_images:,} held-out pictures right, the "
            f"float model {100 * float_top1:.2f} % ({points(top1 - float_top1)} points)"
        )
    outputs = certificate.float_outputs
    notes = [sentence("float_comparison", certificate, count) for count in outputs]
    return "; ".join(notes) or "not measured"


def next_step(
    bits: int, headline: Marked, results: Results | None, why_not: str, *, is_exact: bool = True
) -> str:
    """The advice on the file, by its verdict and its measured loss, or on how to get a better one.

    `why_not` says why the pictures cannot be trained on; it is empty where they can.
    """
    ready = f"build {TFLITE_MODEL} into the app"
    if headline.kind == "bad":
        ready = f"do not ship it; {CERTIFICATE_PAGE} says where it goes wrong"
        if not is_exact:
            return ready
    is_trained = results is not None and results.learning_rate is not None
    gained = None if results is None else results.gained
    trains = f"--epochs refuses {why_not}" if why_not else "--epochs 5 trains"
    if gained is None:
        if is_trained or bits >= _FEWEST_WITHOUT_TRAINING:
            return ready
        return (
            f"{bits} bits without training can cost accuracy; with pictures in folders of the "
            f"model's classes, or --labels of an .npy file, it is measured; {trains}"
        )
    if gained >= -_SMALL_LOSS:
        return ready
    how = "after" if is_trained else "without"
    fix = "sat-tf sensitivity names the layers to blame"
    fix = fix if is_trained else f"{trains}; {fix}" if why_not else trains
    return f"{bits} bits {how} training cost {-100 * gained:.2f} points of top-1; {fix}"
