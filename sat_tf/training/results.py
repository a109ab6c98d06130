"""What a run achieved: a table to read, and the same numbers as plain values."""

import dataclasses
from typing import Any

from rich.table import Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """The outcome of a run.

    Attributes:
        float_top1: held-out top-1 of the float model with clamped weights, in [0, 1].
        quantized_top1: the same of the quantized model; after a deploy tail, before that.
        deployed_top1: the same of the deployed model after a deploy tail; None without one.
        tflite_top1: the same of the TFLite file in LiteRT, on the images it was verified with.
        held_out_images: how many images the first two are about.
        verified_images: how many the third is about.
        parameters: of the float model.
        file_bytes: size of the TFLite file.
        gzip_bytes: its size after gzip.
        codes_compared: integers compared between LiteRT and the integer simulation of the model.
        codes_differing: how many of them differ.
        trained_differing: share of the Keras model's own codes that differ from the simulation,
            in [0, 1]; after a deploy tail, of the deployed model's.
        seconds: of the whole run.
    """

    float_top1: float
    quantized_top1: float
    tflite_top1: float
    held_out_images: int
    verified_images: int
    parameters: int
    file_bytes: int
    gzip_bytes: int
    codes_compared: int
    codes_differing: int
    trained_differing: float
    seconds: float
    deployed_top1: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Results":
        """The results that `to_dict` gave."""
        return cls(**values)

    def table(self, title: str) -> Table:
        """The table that ends a run."""
        table = Table(title=title, show_header=False, title_justify="left")
        table.add_column()
        table.add_column(justify="right")
        held_out = f"held-out top-1 ({self.held_out_images} images)"
        verified = f"held-out top-1 ({self.verified_images} images)"
        differing = "green" if self.codes_differing == 0 else "bold red"
        models = {"float": self.float_top1, "quantized": self.quantized_top1}
        if self.deployed_top1 is not None:
            models["deployed"] = self.deployed_top1
        for row in (
            *(
                (f"{name} model, {held_out}", f"{100 * top1:.2f} %")
                for name, top1 in models.items()
            ),
            (f"TFLite in LiteRT, {verified}", f"{100 * self.tflite_top1:.2f} %"),
            ("parameters", f"{self.parameters:,}"),
            ("TFLite file, bytes", f"{self.file_bytes:,}"),
            ("TFLite file after gzip, bytes", f"{self.gzip_bytes:,}"),
            ("codes compared", f"{self.codes_compared:,}"),
            ("codes that differ", f"[{differing}]{self.codes_differing:,}[/]"),
            ("codes of Keras that differ", f"{100 * self.trained_differing:.4f} %"),
            ("seconds", f"{self.seconds:.0f}"),
        ):
            table.add_row(*row)
        return table
