"""`sat-tf verify`."""

import argparse
import contextlib
import dataclasses
import os
import pathlib
from typing import Any

from rich.console import Console

from sat_tf.commands import images
from sat_tf.commands.models import load_model, quiet_tensorflow, read_keras_model
from sat_tf.commands.options import add_target, add_trust, nonempty
from sat_tf.commands.parser import Parser
from sat_tf.commands.verification_table import conclude, print_certificate
from sat_tf.exact.certificate.certificate import Certificate, read_certificate, write_both
from sat_tf.exact.certificate.proof import read_subject, read_tflite, recheck, verify_file
from sat_tf.exact.certificate.proof_images import random_images
from sat_tf.exact.certificate.rules import severest
from sat_tf.exact.certificate.runtimes import RUNTIMES, USUAL_RUNTIMES
from sat_tf.exact.device import kit
from sat_tf.exact.operator_comparison import compare_operators, is_foreign, read_any_file
from sat_tf.exact.targets.operator_constraints import TARGETS
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.exact.tflite.metadata import read_metadata
from sat_tf.messages import RunError, in_one_line, say, value_errors_as_run_errors
from sat_tf.messages.tables import Marked, marked_text
from sat_tf.output_folder import (
    CERTIFICATE,
    FLOAT_MODEL,
    QUANTIZED_MODEL,
    TFLITE_MODEL,
    OutputFolder,
)


def choose_files(
    source: str | None, tflite: str | None = None
) -> tuple[pathlib.Path, pathlib.Path | None, OutputFolder | None]:
    """The file that the positional arguments name, its model, and the folder of both, if any."""
    if source is None:
        raise RunError(
            "received no file to verify, expected a folder of sat-tf quantize, a TFLite file, or "
            "a quantized model and its file: sat-tf verify quantized.keras model.tflite"
        )
    path, file = pathlib.Path(source), None if tflite is None else pathlib.Path(tflite)
    if file is not None and not file.is_file():
        raise RunError(f"{file}: not found; expected a file to verify.")
    if path.is_dir():
        folder = OutputFolder(path)
        folder.require(QUANTIZED_MODEL, *([] if file else [TFLITE_MODEL]))
        return file or folder.file(TFLITE_MODEL), folder.file(QUANTIZED_MODEL), folder
    if not path.is_file():
        raise RunError(
            f"{path}: not found; expected a folder of sat-tf quantize, a TFLite file, or a "
            "quantized model (.keras)."
        )
    if file is not None:
        return file, path, None
    if path.suffix in (".keras", ".h5"):
        raise RunError(
            f"{path}: received a model without a TFLite file; expected "
            "`sat-tf verify model.keras model.tflite`, or the folder of both."
        )
    return path, None, None


_RUNTIMES = (*USUAL_RUNTIMES, "reference")

DESCRIPTION = (
    "Runs a TFLite file in LiteRT, compares every integer with a simulation of the quantized model "
    "or, without one, of the file itself, and writes certificate.json and certificate.html. Exit "
    "status 1 if the headline is red: codes differ with XNNPACK, or answers do. --kit takes the "
    "comparison to another machine. Of a file that another tool wrote, each operator is compared "
    "on its own inputs: no certificate."
)
EXAMPLES = """\
examples:
  sat-tf verify runs/model_w8a8 --images photos/
  sat-tf verify model.keras model.tflite --images pixels.npy
  sat-tf verify model.tflite --images photos/ --out proof/
  sat-tf verify model.keras model.tflite --float_model float.keras --images photos/
  sat-tf verify model.tflite --target ethos-u55
  sat-tf verify model.tflite --certificate proof/certificate.json --images photos/
  sat-tf verify model.tflite --images photos/ --kit kit.zip
  sat-tf verify model.tflite --certificate certificate_aarch64.json --images photos/
  sat-tf verify of_another_tool.tflite --images photos/ --out operators/
  sat-tf verify stream.tflite --images frames.npy --window window.tflite
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "source",
        metavar="DIR|TFLITE|MODEL",
        nargs="?",
        help="folder of sat-tf quantize or train, a TFLite file, or a quantized .keras model "
        "before its TFLite file",
    )
    parser.add_argument(
        "tflite", metavar="TFLITE", nargs="?", help="the file; default: DIR/model.tflite"
    )
    images.add_image_arguments(
        parser,
        default="random ones",
        usual=f"{images.USUAL_IMAGES} of a folder, all of an .npy file",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=nonempty,
        help="the folder for the certificate; default: that of the TFLite file, none with "
        "--certificate; for another tool's file, that of operators.csv and operators.html; "
        "default: none",
    )
    add_target(parser, default="none; with it, the operators that it leaves to the CPU are named")
    parser.add_argument(
        "--certificate",
        metavar="FILE",
        help="check the file against this certificate, on the images it was made with; random ones "
        "are drawn again; or against that which a proof kit has written on a device",
    )
    parser.add_argument(
        "--kit",
        metavar="ZIP",
        help="also write a proof kit, which checks the file on the machine that it is taken to, "
        "with Python, NumPy and ai-edge-litert alone; default of --num_images: 16",
    )
    parser.advanced.add_argument(
        "--kit_codes",
        action="store_true",
        help="put every code into the kit, so that it counts those that differ",
    )
    parser.advanced.add_argument(
        "--runtime",
        choices=list(RUNTIMES),
        action="append",
        help="what to compare besides xnnpack; can be given several times; micro needs "
        "tflite-micro, and those of Arm are simulated; default: builtin, reference, arm_xnnpack "
        "and arm_xnnpack_unfused",
    )
    parser.advanced.add_argument(
        "--float_model",
        metavar="FILE",
        help="the float .keras model, to compare the file with on the same images; default: that "
        "in DIR, of a run",
    )
    parser.advanced.add_argument(
        "--window",
        metavar="FILE",
        help="for a file with states, the file of the same network for whole windows of frames, "
        "which has to give the same codes",
    )
    parser.advanced.add_argument(
        "--state",
        metavar="OUT=IN",
        action="append",
        help="for another tool's file, an output that is fed back to an input; can be given "
        "several times: operators are compared frame by frame",
    )
    add_trust(parser)


@value_errors_as_run_errors()
def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Compares a file with its model or with itself, code by code; False for a red headline."""
    options = images.image_options(arguments)
    tflite, model, folder = choose_files(arguments.source, arguments.tflite)
    if arguments.kit_codes and arguments.kit is None:
        raise RunError("received --kit_codes without --kit, expected both; name the kit.")
    if arguments.kit is not None:
        kit.check_kit_path(arguments.kit, "--kit")
    if arguments.kit is not None and arguments.certificate is not None:
        raise RunError(
            "received --certificate and --kit, expected one of them; --certificate checks "
            "what was verified before: leave one out."
        )
    if arguments.certificate is not None and not pathlib.Path(arguments.certificate).exists():
        read_certificate(arguments.certificate)  # reports the missing file before any work
    cpu_fallback = {}
    if arguments.target is not None:  # of any tool's file
        processor = TARGETS[arguments.target]
        contents = read_contents(read_tflite(tflite), str(tflite))
        count, fallback = len(contents.operators), processor.cpu_fallback(contents)
        for statement in processor.statements(fallback, count):
            say(console, marked_text(statement))
        if not (processor.native or fallback):
            sentence = f"no reason is known to refuse one of the {count} operators"
            say(console, f"{processor.title}: {sentence}.")
        cpu_fallback = {arguments.target: [str(operator) for operator in fallback]}
    comparison = _Comparison(tflite, model, folder, options, arguments, console)
    if model is None and is_foreign(tflite):
        return comparison.of_operators()
    if arguments.state or (arguments.window and arguments.certificate):
        option, why = "--state", "the file holds its states"
        if not arguments.state:
            option, why = "--window with --certificate", "a certificate is checked without windows"
        raise RunError(f"{tflite}: received {option}, expected none: {why}; leave it out.")
    if arguments.certificate is None:
        return comparison.of_codes(cpu_fallback)
    if kit.is_device_certificate(arguments.certificate):
        return comparison.with_certificate_of_device()
    return comparison.with_certificate()


# Few, because each operator is simulated for each kernel set.
_IMAGES_OF_OPERATORS = 16
# A slow machine runs 16 images in a moment, and 16 of noise reach nearly all codes.
_IMAGES_OF_KIT = 16
_QUIET = Console(quiet=True)  # notes on images are printed where the file is verified
OPERATORS = "operators.csv"


@dataclasses.dataclass(frozen=True)
class _Comparison:
    """A file, its model and its images; each method compares them and prints its findings."""

    tflite: pathlib.Path
    model: pathlib.Path | None  # The file's Keras model, if there is one.
    folder: OutputFolder | None  # The folder of the command that made both, if one did.
    wanted: images.ImageOptions
    arguments: argparse.Namespace
    console: Console

    @property
    def runtimes(self) -> tuple[str, ...]:
        return tuple(self.arguments.runtime or _RUNTIMES)

    def of_operators(self) -> bool:
        """Compares the operators of a file of another tool; whether rules explain all codes."""
        path, options = self.tflite, self.wanted
        excluded = ("certificate", "kit", "float_model", "window")
        if named := [f"--{name}" for name in excluded if getattr(self.arguments, name)]:
            raise RunError(
                f"{path}: received {', '.join(named)} for a file that sat_tf.export_tflite did not "
                "write, expected the file alone: its operators are compared one by one; leave it "
                "out."
            )
        pairs = [pair.partition("=")[::2] for pair in self.arguments.state or ()]
        file = read_any_file(path, dict(pairs))
        count = options.num_images or _IMAGES_OF_OPERATORS
        classes = file.contents.outputs[0].shape[-1:] or (1,)
        first_input, *other_inputs = inputs = file.graph.frame_inputs
        if other_inputs and options.images is not None:
            raise RunError(
                f"{path}: received images for a file with {len(inputs)} inputs, expected none: "
                "random ones are taken for each; leave them out, or give a list of arrays to "
                "sat_tf.export.compare_operators."
            )
        options = dataclasses.replace(options, num_images=count, are_frames=bool(pairs))
        pixels = options.load(first_input.shape, classes[0])
        images.say_notes(pixels.notes, self.console)
        # Inputs of equal shapes get different images.
        other_images = [
            random_images(image.shape, count, seed + 1) for seed, image in enumerate(other_inputs)
        ]
        operator_comparison = compare_operators(
            file,
            [pixels.images, *other_images] if other_images else pixels.images,
            runtimes=self.runtimes,
            images_from=pixels.source,
            progress=True,
        )
        operator_comparison.print_to(self.console)
        if self.arguments.out is not None:
            with OutputFolder(pathlib.Path(self.arguments.out)).opened() as folder:
                operator_comparison.write_csv(folder / OPERATORS)
                page = (folder / OPERATORS).with_suffix(".html")
                operator_comparison.write_page(page)
                say(self.console, f"Operators: {page}")
        return operator_comparison.is_explained

    def of_codes(self, cpu_fallback: dict[str, list[str]]) -> bool:
        """Compares every code, and writes the certificate; `cpu_fallback` has been printed."""
        tflite, out, console = self.tflite, self.arguments.out, self.console
        with (
            contextlib.nullcontext(tflite.parent)
            if out is None
            else OutputFolder(pathlib.Path(out)).opened()
        ) as folder:
            path = folder / CERTIFICATE
            certificate = self._prove(path)
            if cpu_fallback:
                write_both(dataclasses.replace(certificate, cpu_fallback=cpu_fallback), path)
            print_certificate(certificate, str(tflite), console)
            say(console, f"Certificate: {path.with_suffix('.html')}")
            if self.arguments.kit is not None:
                self._write_kit()
            return conclude(tflite, certificate.verdict, console)

    def with_certificate(self) -> bool:
        """Checks the file against its certificate."""
        tflite, out, console = self.tflite, self.arguments.out, self.console
        certificate = self.arguments.certificate
        recorded = read_certificate(certificate)
        pixels = None
        if self.wanted.images is not None:
            # The hash of the images shows whether they are the same.
            options = self.wanted.again(recorded.images_from, recorded.num_images)
            pixels = self._file_pixels(options, console).images
        outcome = recheck(tflite, recorded, pixels, runtimes=self.runtimes, progress=True)
        print_certificate(outcome.certificate, str(tflite), console)
        for difference in outcome.differences:
            say(console, f"  {in_one_line(difference)}", style="red")
        if out is not None:
            with OutputFolder(pathlib.Path(out)).opened() as folder:
                write_both(outcome.certificate, folder / CERTIFICATE)
        if outcome.differences:
            return conclude(certificate, Marked("it does not hold", "bad"), console)
        say(
            console,
            f"{certificate}: holds; the codes of {len(recorded.codes)} tensors are those it has "
            "recorded",
            style="green",
        )
        # A red certificate stays red, whoever finds the same codes.
        headline = severest([outcome.certificate.verdict, recorded.verdict])
        return conclude(certificate, headline, console)

    def _write_kit(self) -> None:
        """Writes the proof kit, and says what to do with it."""
        tflite, options = self.tflite, self.wanted
        few = dataclasses.replace(options, num_images=options.num_images or _IMAGES_OF_KIT)
        pixels = self._file_pixels(few, _QUIET)
        written = kit.write_kit(
            tflite,
            pixels.images,
            self.arguments.kit,
            codes=self.arguments.kit_codes,
            images_from=pixels.source,
            progress=True,
        )
        again = f"--images {options.images} " if options.images else ""
        behind = len(written.not_compared)
        left_out = f", {behind} after float layers left out" if behind else ""
        for line in (
            f"Kit: {written.path}, {written.bytes / 1e6:.1f} MB, {written.num_images} images, "
            f"{len(written.compared)} tensors{left_out}",
            f"On the device: python {written.path.name}, which needs NumPy and ai-edge-litert; "
            f"then here: sat-tf verify {tflite} {again}--certificate certificate_MACHINE.json",
        ):
            say(self.console, line)

    def with_certificate_of_device(self) -> bool:
        """Checks the file against the certificate that a proof kit wrote on a device."""
        tflite, console, certificate = self.tflite, self.console, self.arguments.certificate
        if self.arguments.out is not None:
            raise RunError(
                "received --out with the certificate of a device, expected it without: there is "
                "nothing to write; leave it out."
            )
        written = kit.read_device_certificate(certificate).kit
        pixels = None
        # A file of another shape cannot take the kit's images: the check reports that first.
        if self.wanted.images is not None and read_subject(tflite).sha256 == written.sha256:
            options = self.wanted.again(written.images_from, written.num_images)
            pixels = self._file_pixels(options, _QUIET).images
        check, is_simulated = kit.read_device_check(tflite, certificate, pixels)
        counted = f"{check.title}, kernels {check.kernels}: {check.counted} codes differ"
        if check.first_differing:
            counted += f", first those of {check.first_differing}"
        say(console, in_one_line(f"{counted}; {check.milliseconds:.3g} ms an image"))
        if check.delegate != "XNNPACK":
            what = f"received the delegate {check.delegate}, expected XNNPACK, which is exact"
            say(console, in_one_line(f"{check.title}: {what}"), style="yellow")
        held = (
            "the codes that its kit expected are those of the simulation here"
            if is_simulated
            else "its kit is of this file; what it expected is not checked without its images: "
            f"name them with --images ({written.images_from.description})"
        )
        if not check.is_exact:
            return conclude(certificate, Marked(f"codes differ there; {held}", "bad"), console)
        style = "green" if is_simulated else "yellow"
        say(console, in_one_line(f"{certificate}: nothing differs there; {held}"), style=style)
        return True

    def _prove(self, certificate_path: pathlib.Path) -> Certificate:
        trust = self.arguments.trust_model
        float_model = self.folder.file(FLOAT_MODEL) if self.folder else None
        if self.arguments.float_model is not None:
            float_model = pathlib.Path(self.arguments.float_model)
            if not os.path.isfile(float_model):  # also if the name is too long for a file
                what = f"{self.arguments.float_model} not found; expected a float .keras model."
                raise RunError(f"--float_model: {what}")
        quiet_tensorflow()
        settings: dict[str, Any] = {
            "certificate_path": certificate_path,
            "runtimes": self.runtimes,
            "window": self.arguments.window,
            "progress": True,
        }
        if float_model is not None and float_model.is_file():
            advice = "expected the float model, as Keras has saved it."
            settings["float_model"] = read_keras_model(float_model, advice, trust=trust)
        if self.model is None:
            subject = read_subject(self.tflite)
            pixels = self._file_pixels(self.wanted, self.console)
            if "float_model" in settings:
                from sat_tf.export.verify import FloatReference

                settings["float_model"] = FloatReference(settings["float_model"], subject.graph)
            return verify_file(
                subject, pixels.images, pixels.labels, images_from=pixels.source, **settings
            )
        from sat_tf.export.verify import verify_tflite
        from sat_tf.graph.network import check_one_of_each

        with value_errors_as_run_errors(self.model):
            model = load_model(self.model, trust=trust)
            if not read_subject(self.tflite).graph.states:
                check_one_of_each(model)
            pixels = self._file_pixels(self.wanted, self.console)
            return verify_tflite(
                model,
                self.tflite,
                pixels.images,
                pixels.labels,
                images_from=pixels.source,
                **settings,
            )

    def _file_pixels(self, options: images.ImageOptions, console: Console) -> images.Pixels:
        """The images for the input of the file."""
        graph = read_subject(self.tflite).graph
        image, classes = graph.frame_inputs[0], int(graph.tensors[graph.output].shape[-1])
        options = dataclasses.replace(options, are_frames=bool(graph.states))
        metadata = read_metadata(read_tflite(self.tflite), str(self.tflite))
        pixels = options.load(image.shape, classes, metadata)
        images.say_notes(pixels.notes, console)
        try:
            return pixels.of_input(image)
        except ValueError as error:
            raise ValueError(f"{self.tflite}: {error}") from error
