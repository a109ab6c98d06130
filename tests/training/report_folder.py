"""A run folder as a run leaves it, made up in a moment."""

import dataclasses
import math

from sat_tf import output_folder
from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.certificate.output_comparison import OutputCount
from sat_tf.exact.certificate.proof_images import ImagesFrom
from sat_tf.exact.certificate.record import RuntimeCount, TensorCount
from sat_tf.messages.tables import write_table
from sat_tf.report.layer_table import LayerRow
from sat_tf.report.report import write_layers
from sat_tf.report.results import Results
from sat_tf.training import run_folder
from sat_tf.training.config import config_text, parse_config
from sat_tf.training.run_folder import EpochMetrics, RunFolder

HOSTILE = "<script>document.title='hostile'</script>"
_BYTES = {"file_bytes": 636432, "gzip_bytes": 296109}


def write_rows(folder: RunFolder, rows: list[EpochMetrics]) -> None:
    """Writes the metrics of a run."""
    table = write_table(EpochMetrics.columns(), map(dataclasses.astuple, rows))
    folder.write_text(run_folder.METRICS, table)


def fill(folder: RunFolder, *, layer: str = "block_{}_relu", codes_differing: int = 0) -> RunFolder:
    """Writes the files that a report is made of."""
    epochs = []
    for stage, start, last in (("float", 0, 3), ("quantized", 3, 4)):
        for epoch in range(1, last + 1):
            falling = math.exp(-(start + epoch) / 2)
            fields = {"learning_rate": 0.01, "loss": 2.0 * falling, "data_loss": falling}
            fields |= {"train_top1": 0.9, "train_top5": 0.99, "seconds": 1.5}
            fields |= {"held_out_loss": 2.2 * falling, "held_out_top1": 1 - falling}
            level = None if stage == "float" else 2 + 0.4 * epoch
            fields |= {"held_out_top5": 0.999, "clipping_level": level}
            epochs.append(EpochMetrics(stage=stage, epoch=epoch, step=20 * epoch, **fields))
    epochs.insert(3, EpochMetrics(stage="quantized", epoch=0, step=0, held_out_top1=0.9))
    write_rows(folder, epochs)
    config = parse_config("name: demo", ["data.name=digits", "model.name=mobilenet_v2"])
    folder.write_text(output_folder.CONFIG, config_text(config))
    environment = {"seed": 3, "tensorflow": "2.21.0", "commit": None, "devices": ["CPU: one"]}
    folder.write_json(run_folder.ENVIRONMENT, environment)
    shares = {"float_top1": 0.9759, "float_top5": 1.0, "tflite_top1": 0.9703}
    shares |= {"quantized_top1": 0.968, "quantized_top5": 0.999, "trained_differing": 0.0}
    numbers = {"held_out_images": 539, "verified_images": 539, "parameters": 423018}
    numbers |= {"codes_compared": 54379166, "codes_differing": codes_differing, **_BYTES}
    results = Results(**shares, **numbers, seconds=119.7)
    folder.write_json(output_folder.RESULTS, results.to_dict())
    folder.write_json(output_folder.CERTIFICATE, _certificate(layer, codes_differing).to_dict())
    write_layers(folder, list(_layers(layer)))
    return folder


def _certificate(layer, codes_differing):
    parts = OutputCount("masks & more", (10,), 539, 0.5, 0.0, 0.0, 1.0, "softmax")
    runtimes = {
        name: RuntimeCount(
            tensors=[TensorCount("all", (8,), 54379166, differing)],
            float_values_compared=0,
            largest_float_difference=0.0,
            outputs_differing=0,
            delegation=None,
            agreement=1.0,
            largest_output_difference=0.0,
            top1=0.9703,
        )
        for name, differing in (("xnnpack", codes_differing), ("builtin", 1234))
    }
    return Certificate(
        model="demo",
        file="model.tflite",
        bytes=_BYTES["file_bytes"],
        gzip_bytes=_BYTES["gzip_bytes"],
        sha256="ab" * 32,
        float_layers=[layer] if layer == HOSTILE else [],
        num_images=539,
        images_sha256="cd" * 32,
        images_from=ImagesFrom("held-out images"),
        reference="simulation",
        agreement=1.0,
        runtimes=runtimes,
        float_outputs=[parts, dataclasses.replace(parts, name="classes", agreement=1.0)],
        **{name: {} for name in ("operators", "versions", "top1", "refused")},
        **{name: [] for name in ("float_operators", "codes", "trained", "warnings")},
    )


def _layers(layer):
    kernel = {"weight_bits": 4, "weight_grid": "dorefa", "weight_codes": 16}
    output = {"activation_bits": 4, "activation_codes": 16, "activation_codes_used": 16}
    output |= {"clipping_level": 2.5, "clipped": 0.0123}
    for index in range(12):
        name = layer.format(index)
        conv = {"name": name.replace("relu", "expand"), "parameters": 12345, **kernel}
        yield LayerRow(kind="Conv2D", weight_codes_used=15, **conv)
        yield LayerRow(name=name, kind="ReLU", parameters=0, **output)
    kernel = {"weight_bits": 8, "weight_grid": "narrow", "weight_codes": 255}
    kernel |= {"weight_codes_used": 201, "rescale": "constant", "rescale_constant": 0.316}
    yield LayerRow(name="classifier", kind="Dense", parameters=12810, **kernel)
