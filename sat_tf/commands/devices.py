"""The part of `sat-tf verify` that is about other machines."""

import argparse
import dataclasses
import pathlib
from collections.abc import Callable

from rich.console import Console

from sat_tf.commands.images import ImageOptions, Pixels
from sat_tf.commands.verification_table import conclude
from sat_tf.exact.certificate.proof import read_subject
from sat_tf.exact.device.kit import check_kit_path, write_kit
from sat_tf.exact.device.report import (
    DeviceCheck,
    is_device_certificate,
    read_device_certificate,
    read_device_check,
)
from sat_tf.messages import RunError, in_one_line, say, value_errors_as_run_errors
from sat_tf.presentation.tables import Column, Marked, Table, digits

# A slow machine runs 16 images in a moment, and 16 of noise reach nearly all codes.
_IMAGES_OF_KIT = 16

# The images that options name, for the input of a file.
LoadPixels = Callable[[ImageOptions], Pixels]


def check_kit_options(arguments: argparse.Namespace) -> None:
    """Checks that --kit, --kit_codes and --certificate go together."""
    if arguments.kit is None:
        if arguments.kit_codes:
            raise RunError("received --kit_codes without --kit, expected both; name the kit.")
        return
    with value_errors_as_run_errors():
        check_kit_path(arguments.kit, "--kit")
    if arguments.certificate is not None:
        raise RunError(
            "received --certificate and --kit, expected one of them; --certificate checks "
            "what was verified before: leave one out."
        )


def write_device_kit(
    arguments: argparse.Namespace,
    tflite: pathlib.Path,
    wanted: ImageOptions,
    load: LoadPixels,
    console: Console,
) -> None:
    """Writes the proof kit, and says what to do with it."""
    few = wanted.num_images or _IMAGES_OF_KIT
    pixels = load(dataclasses.replace(wanted, num_images=few))
    kit = write_kit(
        tflite,
        pixels.images,
        arguments.kit,
        codes=arguments.kit_codes,
        images_from=pixels.source,
        progress=True,
    )
    again = f"--images {wanted.images} " if wanted.images else ""
    left_out = f", {len(kit.not_compared)} behind float layers left out" if kit.not_compared else ""
    for line in (
        f"Kit: {kit.path}, {kit.bytes / 1e6:.1f} MB, {kit.num_images} images, "
        f"{len(kit.compared)} tensors{left_out}",
        f"On the device: python {kit.path.name}, which needs NumPy and ai-edge-litert; then here: "
        f"sat-tf verify {tflite} {again}--certificate certificate_MACHINE.json",
    ):
        say(console, line)


def check_device_certificate(
    arguments: argparse.Namespace,
    tflite: pathlib.Path,
    wanted: ImageOptions,
    load: LoadPixels,
    console: Console,
) -> bool | None:
    """Checks a file against a device's certificate; None where `sat-tf verify` wrote it."""
    certificate = arguments.certificate
    if not is_device_certificate(certificate):
        return None
    if arguments.out is not None:
        raise RunError(
            "received --out with the certificate of a device, expected it without: there is "
            "nothing to write; leave it out."
        )
    kit = read_device_certificate(certificate).kit
    images = None
    # A file of another shape cannot take the kit's images: the check reports that first.
    if wanted.images is not None and read_subject(tflite).sha256 == kit.sha256:
        images = load(wanted.again(kit.images_from, kit.num_images)).images
    check, is_simulated = read_device_check(tflite, certificate, images)
    console.print(Table(columns=_COLUMNS, rows=[check]).to_rich())
    if check.delegate != "XNNPACK":
        what = (
            f"received the delegate {check.delegate}, expected XNNPACK, which files are exact with"
        )
        say(console, in_one_line(f"{check.title}: {what}"), style="yellow")
    held = (
        "the codes that its kit expected are those of the simulation here"
        if is_simulated
        else "its kit is of this file; what it expected is not checked without its images: name "
        f"them with --images ({kit.images_from.description})"
    )
    outcome = "nothing differs there" if check.is_exact else "codes differ there"
    if not check.is_exact:
        return conclude(certificate, Marked(f"{outcome}; {held}", "bad"), console)
    style = "green" if is_simulated else "yellow"
    say(console, in_one_line(f"{certificate}: {outcome}; {held}"), style=style)
    return True


_COLUMNS: list[Column[DeviceCheck]] = [
    Column("machine", lambda device: device.title),
    Column("kernels", lambda device: device.kernels),
    Column(
        "codes differing",
        lambda device: Marked(device.counted, "good" if device.is_exact else "bad"),
        number=True,
        wrap="never",
    ),
    Column("first that differs", lambda device: device.first_differing or "none", wrap="fold"),
    Column("ms an image", lambda device: device.milliseconds, digits(".3g"), number=True),
]
