"""The part of a configuration that says where training starts, and on what arithmetic it runs."""

from typing import Literal

from pydantic import Field

from sat_tf.training.section import Section


class TrainingConfig(Section):
    """What holds for all stages alike."""

    start: Literal["clamped", "vanilla"] = Field(
        default="clamped",
        description="clamped (the float stage trains with clamped weights, as in the paper) or "
        "vanilla (it trains an ordinary float model, whose function the quantized one keeps)",
    )
    float_model: str | None = Field(
        default=None,
        description="the file of a trained float model, which then takes the place of the float "
        "stage, or null (train one)",
    )
    trust_model: bool = Field(
        default=False,
        description="true (a model in a file may run code when it is loaded, as Lambda layers do; "
        "only for models of people you trust) or false",
    )
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = Field(
        default="float32", description="one of float32, mixed_float16, mixed_bfloat16"
    )
    jit_compile: bool = Field(
        default=False,
        description="true (the step is compiled by XLA, for accelerators) or false",
    )
    deterministic_ops: bool = Field(
        default=False,
        description="true (accelerators add in a fixed order, which takes time, so that a run can "
        "be repeated bit for bit on them too) or false; processors always do",
    )
    synchronized_batch_normalization: bool = Field(
        default=True,
        description="true (several devices share the statistics of their batches, so that results "
        "do not depend on their number) or false (each has its own)",
    )
    checkpoint_minutes: float = Field(
        default=10, gt=0, description="a positive number: minutes between checkpoints, at most"
    )
    checkpoint_steps: int | None = Field(
        default=None,
        ge=1,
        description="a positive integer: steps between checkpoints, or null (time alone counts)",
    )
    keep_checkpoints: int = Field(
        default=2, ge=1, description="a positive integer: how many checkpoints to keep"
    )
