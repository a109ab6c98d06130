"""Bytes of files by what quantizes the weights, plain and compressed with gzip.

Values that are shared, and levels that are learnt, are int8 codes anywhere from -127 to 127: their
files are no smaller, but they compress, as the codes of a grid do that are not packed. All layers
have the same bits, the first and the last one too; each file is verified.

    python benchmarks/compressed_files.py
    python benchmarks/compressed_files.py --models=resnet18 --bits=2
"""

import pathlib
from typing import Any

import rich.console
import tf_keras as keras
from absl import app, flags
from full_size import IMAGE_SIZE, realistic_model, smooth_images
from rows import as_table, write_csv

import sat_tf
from sat_tf.exact.tflite.contents import gzip_size
from sat_tf.qat.policy import BitPolicy

_QUANTIZERS = ("dorefa", "lsq", "kmeans", "lq_nets")
_PACKS = {2: "int2", 3: "auto", 4: "auto"}

_MODELS = flags.DEFINE_list("models", ["mobilenet_v2"], "names of `sat_tf.training.models`")
_BITS = flags.DEFINE_list("bits", [2, 3, 4], "of the weights")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/compressed_files.csv", "where to write")
_FOLDER = flags.DEFINE_string("folder", "runs/compressed_files", "where to write files")

_IMAGES = 16


def _rows(model: str, quantizer: str, bits: int, packs: list[str]) -> list[dict[str, Any]]:
    keras.utils.set_random_seed(0)
    policy = BitPolicy.mobile(
        bits, activation_bits=8, weight_quantizer=quantizer, first_last_weight_bits=None
    )
    images = smooth_images(_IMAGES + 1)
    quantized = sat_tf.quantize_model(realistic_model(model, dead_channels=False), policy)
    sat_tf.calibrate(quantized, images[:_IMAGES])
    folder = pathlib.Path(_FOLDER.value) / model / quantizer
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for pack in packs:
        path = folder / f"{bits}_{pack}.tflite"
        report = sat_tf.export_tflite(quantized, path, pack=pack)
        certificate = sat_tf.verify_tflite(quantized, path, images[_IMAGES:], runtimes=["xnnpack"])
        weights = sum(kernel.weights for kernel in report.kernels)
        content = path.read_bytes()
        rows.append(
            {
                "model": model,
                "weights": quantizer,
                "bits": bits,
                "pack": pack,
                "bytes": len(content),
                "gzip bytes": gzip_size(content),
                "gzip bits a weight": f"{8 * gzip_size(content) / weights:.2f}",
                "codes compared": certificate.codes_compared,
                "codes differing": certificate.codes_differing,
            }
        )
    return rows


def main(argv: list[str]) -> None:
    """Writes every file, and the CSV after each; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console, rows = rich.console.Console(), []
    for model in _MODELS.value:
        cases = [("dorefa", 8, ["none"])]
        for bits in map(int, _BITS.value):
            for quantizer in _QUANTIZERS:
                on_grid = quantizer in ("dorefa", "lsq")
                cases.append((quantizer, bits, ["none", *([_PACKS[bits]] if on_grid else [])]))
        for quantizer, bits, packs in cases:
            with console.status(f"{model}, {quantizer}, {bits} bits"):
                rows += _rows(model, quantizer, bits, packs)
            write_csv(rows, _OUTPUT.value)
            keras.backend.clear_session()
    console.print(as_table(rows, f"{IMAGE_SIZE}x{IMAGE_SIZE}, random weights", tuple(rows[0])))
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
