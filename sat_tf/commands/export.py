"""`sat-tf export`."""

import argparse
import pathlib
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from sat_tf import output_folder
from sat_tf.commands import options
from sat_tf.commands.models import load_model, quiet_tensorflow
from sat_tf.commands.parser import Parser
from sat_tf.exact.targets.processors import saved_target
from sat_tf.exact.tflite.metadata import checked_metadata, lines_of
from sat_tf.files import check_writable, read_bytes, read_text
from sat_tf.messages import ProblemsError, RunError, say, value_errors_as_run_errors
from sat_tf.messages.tables import marked_text
from sat_tf.output_folder import OutputFolder
from sat_tf.yaml_text import load_yaml

# Files with these endings would replace those of a run, or models.
_OTHER_FILES = (".keras", ".h5", ".hdf5", ".yaml", ".yml", ".json", ".txt", ".csv", ".html")
# Settings of the file that the configuration of a run has too.
_OF_RUN = ("float_head", "pack", "softmax", "output_type")

DESCRIPTION = (
    "Writes the quantized model in a folder, or a saved one, as an integer TFLite file, or shows "
    "every operation it would contain."
)
EXAMPLES = """\
examples:
  sat-tf export runs/digits_mobilenet_v2_w4a4
  sat-tf export runs/digits_mobilenet_v2_w4a4 --dry_run
  sat-tf export quantized.keras --out model.tflite --pack none
  sat-tf export runs/digits_mobilenet_v2_w4a4 --float_head --out app/digits.tflite
  sat-tf export quantized.keras --softmax --labels labels.txt
  sat-tf export quantized.keras --target ethos-u55
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "source",
        metavar="DIR|MODEL",
        help="folder of sat-tf quantize or train, or a quantized .keras model",
    )
    options.add_name(
        parser, "--out", "FILE", "default: DIR/model.tflite, or MODEL with this ending"
    )
    parser.refused = {
        **dict.fromkeys(
            ("--bits", "--input_range", "--policy", "--unsupported"),
            "a quantized model has its own; sat-tf quantize makes another one of the float model, "
            "and sat_tf.requantize in Python of this one",
        ),
        "--images": "it runs nothing; sat-tf verify compares the file with the model on images",
    }
    options.add_target(parser, default="that of the run's policy, or litert")
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="text file with the name of a class on each line; default: labels.txt in DIR",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print every operation of the file, and write none"
    )
    options.add_output_type(parser, default=f"as in the run's config, or {options.OWN_TYPE}")
    parser.advanced.add_argument(
        "--float_head",
        action=argparse.BooleanOptionalAction,
        help="keep the last layer float, for exact logits; default: as in the run's config",
    )
    parser.advanced.add_argument(
        "--softmax",
        action=argparse.BooleanOptionalAction,
        help="append a softmax: outputs are probabilities; default: as in the run's config",
    )
    options.add_pack(parser, default="as in the run's config", usual=None)
    parser.advanced.add_argument(
        "--compare_storage",
        action="store_true",
        help="print what each choice of --pack costs in bytes and in time",
    )
    parser.advanced.add_argument(
        "--route",
        default="direct",
        metavar="direct|converter",
        choices=["direct", "converter"],
        help="converter lets TensorFlow's converter write the file, which is then not certified",
    )
    parser.advanced.add_argument(
        "--resizable", action="store_true", help="leave the batch size open"
    )
    options.add_trust(parser)


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Does what the arguments ask for."""
    of_run = {name: getattr(arguments, name) for name in (*_OF_RUN, "target")}
    if arguments.dry_run:
        _show(arguments.source, console, trust=arguments.trust_model, **of_run)
        return
    settings = {**of_run, "resizable": arguments.resizable, "route": arguments.route}
    if arguments.labels is not None:
        try:
            labels = settings["labels"] = lines_of(read_text(arguments.labels))
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(
                f"--labels: received {arguments.labels}, which cannot be read ({error}), expected "
                "a UTF-8 text file with the name of a class on each line."
            ) from error
        if problems := checked_metadata(None, labels)[1]:
            raise RunError(ProblemsError(arguments.labels, problems))
    model_path, settings = _find_model(arguments.source, settings)
    in_folder = model_path != pathlib.Path(arguments.source)
    usual = model_path.with_suffix(".tflite")
    if in_folder:
        usual = model_path.with_name(output_folder.TFLITE_MODEL)
    path = pathlib.Path(arguments.out) if arguments.out else usual
    with value_errors_as_run_errors():
        check_writable(path)
    if path.suffix in _OTHER_FILES or (path.exists() and path.samefile(model_path)):
        raise RunError(
            f"--out: received {path}, expected the name of a TFLite file, by which no model is "
            f"replaced; call it {path.with_suffix('.tflite').name}."
        )
    quiet_tensorflow()
    from sat_tf.export.export import export_tflite
    from sat_tf.graph.network import Network
    from sat_tf.qat.inputs import takes_pixels

    model = load_model(model_path, trust=arguments.trust_model)
    if in_folder and settings.get("route", "direct") == "direct":
        # A file has the classes and the preprocessing that its run has written down.
        folder = OutputFolder(pathlib.Path(arguments.source))
        if text := folder.read_text(output_folder.LABELS):
            settings.setdefault("labels", lines_of(text))
        if (preprocessing := folder.preprocessing) and takes_pixels(Network(model)):
            settings.setdefault("preprocessing", preprocessing)
    with value_errors_as_run_errors(model_path):
        report = export_tflite(model, path, compare_storage=arguments.compare_storage, **settings)
    say(console, report.summary)
    kernels = report.kernel_table()
    if kernels.rows:
        console.print(kernels.to_rich())
    for statement in report.statements:
        say(console, marked_text(statement))
    certificate = path.with_name(output_folder.CERTIFICATE)
    if certificate.is_file() and report.sha256.encode() not in read_bytes(certificate):
        say(console, f"Note: {certificate} is about another file; renew it with sat-tf verify")
    for cost in report.storage if arguments.compare_storage else []:
        say(console, f"  {cost}")


def _show(source: str, console: Console, *, trust: bool, **settings: Any) -> None:
    """Prints the operations in the file of a quantized model."""
    path, settings = _find_model(source, settings)
    quiet_tensorflow()
    from sat_tf.exact.operations.graph import graph_table
    from sat_tf.export.export import file_graph
    from sat_tf.export.lowering.packing import FileSettings
    from sat_tf.graph.network import Network

    with value_errors_as_run_errors(path):
        file_settings = FileSettings(**{"output_type": None, "states": None, **settings})
        graph = file_graph(Network(load_model(path, trust=trust)), file_settings)
    if console.is_terminal:
        console.print(graph_table(graph))
    else:  # a file or a pipe has no width of its own
        say(console, str(graph))


def _find_model(source: str, settings: Mapping[str, Any]) -> tuple[pathlib.Path, dict[str, Any]]:
    """The quantized model of a run, or the file itself, and the settings of its file."""
    settled = {name: value for name, value in settings.items() if value is not None}
    path = pathlib.Path(source)
    if path.is_file():
        return path, settled
    if not path.exists():
        raise RunError(
            f"{path}: not found; expected a folder of sat-tf quantize, or a quantized model "
            "(.keras)."
        )
    folder = OutputFolder(path)
    folder.require(output_folder.QUANTIZED_MODEL)
    try:
        config = load_yaml(folder.read_text(output_folder.CONFIG)) or {}
        of_run = {name: (config.get("export") or {}).get(name) for name in _OF_RUN}
        of_run["target"] = saved_target((config.get("policy") or {}).get("target"))
    except (ValueError, AttributeError) as error:
        raise folder.damaged(output_folder.CONFIG, error, "the configuration") from error
    return folder.file(output_folder.QUANTIZED_MODEL), {
        **{name: value for name, value in of_run.items() if value is not None},
        **settled,
    }
