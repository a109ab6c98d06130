"""The results of a run: a table to read, and the same numbers as plain values."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import rich.table
from pydantic import ConfigDict

from sat_tf import output_folder
from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.certificate.rules import CODES, kind_of_loss, sentence
from sat_tf.exact.top_k import AGREEMENT, TOP1, Score
from sat_tf.messages.tables import Cell, Column, Displayed, Marked, Table, digits, percent, points
from sat_tf.output_folder import OutputFolder
from sat_tf.qat.reconstruction.fitted import Fitted

# The models that a run measures, by the prefix of their results.
_MODELS = {
    "float": "float model",
    "calibrated": "calibrated model",
    "start": "quantized model before training",
    "quantized": "quantized model",
    "tflite": "TFLite in LiteRT",
}


class ModelAccuracy(NamedTuple):
    """The accuracy of one model of a run on held-out images."""

    title: str  # The model's title.
    share: float  # Top-1, or without labels the agreement with the float model.
    top5: float | None  # Top-5; None where it is unknown.
    images: int | None  # How many images.

    def in_words(self) -> str:
        """Returns the share in words, and top-5 where it is known."""
        suffix = "" if self.top5 is None else f" (top-5 {100 * self.top5:.2f} %)"
        return f"{100 * self.share:.2f} %{suffix}"


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Results(Displayed):
    """The outcome of a run."""

    # Files of earlier versions have entries about a stage that runs no longer have.
    __pydantic_config__: ClassVar = ConfigDict(extra="ignore")

    held_out_images: int  # How many images the Keras models were measured on.
    parameters: int  # The number of parameters of the float model.
    seconds: float  # The duration of the whole run.
    # Held-out top-1 and top-5, in [0, 1]: None without labels, top-5 also with few classes. Those
    # of the quantized model and the TFLite file are None if the run ends with the float model.
    float_top1: float | None = None
    quantized_top1: float | None = None
    float_top5: float | None = None
    quantized_top5: float | None = None
    tflite_top5: float | None = None  # Top-5 of the file in LiteRT, on `tflite_images` images.
    tflite_top1: float | None = None  # Top-1 of the file, likewise.
    # How many held-out images the TFLite file was measured on: all, where that takes little time,
    # otherwise those that it was verified with.
    tflite_images: int | None = None
    verified_images: int | None = None  # How many images the file's codes were compared on.
    file_bytes: int | None = None  # Size of the TFLite file.
    gzip_bytes: int | None = None  # Its size after gzip.
    # Integers compared between LiteRT and the integer simulation of the model.
    codes_compared: int | None = None
    codes_differing: int | None = None  # How many of them differ.
    # Share of the Keras model's own codes that differ from the simulation, in [0, 1].
    trained_differing: float | None = None
    # Shares of the quantized model before training, after any calibration; None without training.
    start_top1: float | None = None
    start_top5: float | None = None
    # Agreement takes the place of top-1 where there are no labels: the share of held-out images
    # that get the class of the float model.
    start_agreement: float | None = None
    quantized_agreement: float | None = None
    tflite_agreement: float | None = None
    # Whether the float model comes from a file; it may have been trained on the held-out images.
    given_float_model: bool = False
    learning_rate: float | None = None  # The peak of the quantized stage; None without training.
    # The peaks that were tried, each with the distance from the float model after a few steps, or
    # None where the model diverged; None where the rate was given.
    tried_learning_rates: dict[float, float | None] | None = None
    # The epoch of the quantized model's weights, where the best was kept; 0 is before training.
    kept_epoch: int | None = None
    # The outcome of fitting the calibrated model; None where it was not fitted.
    reconstruction: Fitted | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: without agreement if there are labels, otherwise without top-1."""
        left_out = ("_top1", "_top5") if self.float_top1 is None else ("_agreement",)
        values = dataclasses.asdict(self)
        if self.reconstruction is not None:
            values["reconstruction"] = self.reconstruction.to_dict()
        return {name: value for name, value in values.items() if not name.endswith(left_out)}

    @classmethod
    def read(cls, folder: OutputFolder) -> "Results":
        """The results of the finished run in a folder."""
        folder.require(output_folder.RESULTS)
        return folder.read_values(output_folder.RESULTS, cls, "results")

    @property
    def images_of_file(self) -> int | None:
        """How many held-out images the TFLite file was measured on."""
        # Results of earlier versions lack this number.
        return self.verified_images if self.tflite_images is None else self.tflite_images

    def accuracies(self) -> list[ModelAccuracy]:
        """The accuracies of the models that were measured, in the order of the run."""
        values = {
            **vars(self),
            "calibrated_top1": self.reconstruction and self.reconstruction.calibrated_top1,
            "calibrated_top5": self.reconstruction and self.reconstruction.calibrated_top5,
        }
        return [
            ModelAccuracy(
                title,
                share,
                values[f"{name}_top5"],
                self.images_of_file if name == "tflite" else self.held_out_images,
            )
            for name, title in _MODELS.items()
            if (share := values.get(f"{name}_{self.score.name}")) is not None
        ]

    @property
    def score(self) -> Score:
        """The share that compares models: top-1, or agreement with the float model."""
        return AGREEMENT if self.float_top1 is None else TOP1

    @property
    def differing(self) -> Marked | None:
        """How many codes differ between LiteRT and the simulation; None without a file."""
        if self.codes_differing is None:
            return None
        words = f"{sentence('counted', self.codes_differing, self.codes_compared)} codes differ"
        unequal, equal = (rule.headline for rule in CODES.rules)
        return Marked(words, unequal if self.codes_differing else equal)

    @property
    def shipped(self) -> ModelAccuracy | None:
        """The share that the file is judged by; None without a file.

        It is the file's own where that was measured on as many images as the float model, otherwise
        the quantized model's: shares of different images cannot be compared.
        """
        accuracies = {accuracy.title: accuracy for accuracy in self.accuracies()}
        of_file = accuracies.get(_MODELS["tflite"])
        if of_file is None or of_file.images == self.held_out_images:
            return of_file
        return accuracies.get(_MODELS["quantized"], of_file)

    @property
    def gained(self) -> float | None:
        """The share of `shipped` less the float model's; None where one was not measured."""
        if self.shipped is None or self.float_top1 is None:
            return None
        return self.shipped.share - self.float_top1

    @property
    def loss(self) -> Marked | None:
        """The loss of the file against the float model, by `rules.FLOAT`; None without a file."""
        if self.shipped is None:
            return None
        float_share = 1.0 if self.float_top1 is None else self.float_top1
        style = kind_of_loss(float_share - self.shipped.share, self.held_out_images)
        return Marked(f"{points(self.shipped.share - float_share)} points", style)

    def caveat(self) -> str:
        """A warning about the accuracy of a float model that was given; "" for others."""
        if not self.given_float_model or self.float_top1 is None:
            return ""
        return "the float model may have been trained on these very images"

    def rate(self) -> str:
        """The learning rate, and how it was found; "" without training."""
        if self.learning_rate is None:
            return ""
        rate, tried = f"{self.learning_rate:g}", self.tried_learning_rates
        if not tried:
            return rate
        return f"{rate}, chosen by a trial of {len(tried)} from {min(tried):g} to {max(tried):g}"

    def kept(self) -> str:
        """The epoch whose weights the quantized model has; "" where that was not chosen."""
        if not self.kept_epoch:
            return "" if self.kept_epoch is None else "0: no epoch was better than the start"
        return f"{self.kept_epoch}, the best on the held-out images"

    def table(self, title: str) -> rich.table.Table:
        """The table that ends a run."""
        return self._facts().to_rich(title=title, show_header=False, title_justify="left")

    def _headline(self) -> str:
        phrases = [f"{accuracy.title} {accuracy.in_words()}" for accuracy in self.accuracies()]
        if self.images_of_file not in (None, self.held_out_images):
            phrases[-1] += f" on {self.images_of_file:,} of {self.held_out_images:,} images"
        if self.differing:
            phrases.append(self.differing.words)
        return ", ".join(phrases)

    def _tables(self) -> dict[str, Table[Any]]:
        return {"Results": self._facts()}

    def _facts(self) -> Table[tuple[str, Cell]]:
        count = digits(",")
        rows: list[tuple[str, Cell]] = [
            *(
                (
                    f"{accuracy.title}, held-out {self.score.title} ({accuracy.images} images)",
                    accuracy.in_words(),
                )
                for accuracy in self.accuracies()
            ),
            ("", self.caveat()),
            ("reconstruction", self.reconstruction.how if self.reconstruction else ""),
            ("learning rate", self.rate()),
            ("weights of epoch", self.kept()),
            ("parameters", count(self.parameters)),
            ("TFLite file, bytes", count(self.file_bytes)),
            ("TFLite file after gzip, bytes", count(self.gzip_bytes)),
            ("LiteRT against the simulation", self.differing or ""),
            ("codes of Keras that differ", percent(4)(self.trained_differing)),
            ("seconds", f"{self.seconds:.0f}"),
        ]
        columns: list[Column[tuple[str, Cell]]] = [
            Column("", lambda row: row[0]),
            Column("", lambda row: row[1], number=True),
        ]
        return Table(columns=columns, rows=[row for row in rows if row[1]])


def of_certificate(certificate: Certificate) -> dict[str, Any]:
    """The entries of the results that the certificate of a file gives."""
    score = (
        {"tflite_top1": certificate.top1["tflite"]}
        if certificate.top1
        else {"tflite_agreement": certificate.float_outputs[0].agreement}
    )
    return {
        **score,
        "tflite_images": certificate.num_images,
        "verified_images": certificate.num_images,
        "file_bytes": certificate.bytes,
        "gzip_bytes": certificate.gzip_bytes,
        "codes_compared": certificate.codes_compared,
        "codes_differing": certificate.codes_differing,
        "trained_differing": certificate.trained_differing,
    }
