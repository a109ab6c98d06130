"""The part of a configuration that says how each stage trains."""

from pydantic import Field

from sat_tf.training.section import Section


class StageConfig(Section):
    """How one stage trains; the defaults are the paper's for MobileNets on ImageNet.

    The learning rate goes linearly from `first_learning_rate` to `peak_learning_rate` during the
    warm-up, and from there to 0 on half a cosine, both step by step.
    """

    epochs: int = Field(default=150, ge=1, description="a positive integer: passes over the images")
    steps: int | None = Field(
        default=None,
        ge=1,
        description="a positive integer, or null (epochs times the steps of an epoch): how many "
        "batches in all",
    )
    batch_size: int = Field(
        default=2048, ge=1, description="a positive integer: images a step, over all devices"
    )
    base_learning_rate: float = Field(
        default=0.05, gt=0, description="a positive number: the peak for batches of 256 images"
    )
    warmup_epochs: float = Field(default=5, ge=0, description="a number, 0 (no warm-up) or more")
    warmup_learning_rate: float | None = Field(
        default=None,
        ge=0,
        description="a number, 0 or more, or null (base_learning_rate, the peak if that is lower)",
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="a number from 0 to below 1")
    nesterov: bool = Field(default=True, description="true or false")
    weight_decay: float = Field(default=4e-5, ge=0, description="a number, 0 (none) or more")

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate where the warm-up ends: it grows with the batch."""
        return self.base_learning_rate * self.batch_size / 256

    @property
    def first_learning_rate(self) -> float:
        """The learning rate where the warm-up starts."""
        if self.warmup_learning_rate is not None:
            return self.warmup_learning_rate
        return min(self.base_learning_rate, self.peak_learning_rate)

    def steps_per_epoch(self, num_images: int) -> int:
        """How many full batches the given number of training images make."""
        return num_images // self.batch_size

    def total_steps(self, steps_per_epoch: int) -> int:
        """How many batches the stage has, given how many an epoch has."""
        return self.steps or self.epochs * steps_per_epoch

    def problems(self) -> list[str]:
        """Settings that are fine each for itself, but not together."""
        found = []
        if self.steps is None and self.warmup_epochs >= self.epochs:
            found.append(
                f"warmup_epochs={self.warmup_epochs:g} with epochs={self.epochs}: expected a "
                "warm-up shorter than the stage; lower warmup_epochs."
            )
        if self.nesterov and self.momentum == 0:
            found.append(
                "momentum=0 with nesterov=true: expected momentum above 0; set nesterov to false."
            )
        return found


class StagesConfig(Section):
    """The float stage with clamped weights, the quantized one that goes on from it, and the tail.

    The tail, which is optional, trains the quantized model on the integers of its file; see
    `sat_tf.training.deploy_tail`.
    """

    float: StageConfig = Field(default=StageConfig(), description="a mapping")
    quantized: StageConfig | None = Field(
        default=StageConfig(),
        description="a mapping, in which what it leaves out is as in the float stage, or null (the "
        "run ends with the float model)",
    )
    deploy_tail: StageConfig | None = Field(
        default=None,
        description="a mapping, in which what it leaves out is as in the quantized stage, or null "
        "(no such stage)",
    )

    def by_name(self) -> dict[str, StageConfig]:
        """The stages there are, in order."""
        stages = {"quantized": self.quantized, "deploy_tail": self.deploy_tail}
        asked_for = {name: stage for name, stage in stages.items() if stage is not None}
        return {"float": self.float, **asked_for}

    def inherited(self) -> "StagesConfig":
        """The same with every setting a stage leaves out taken from the stage before.

        Raises:
            ValueError: settings of a stage do not fit each other; a line for each.
        """
        resolved: dict[str, StageConfig] = {}
        problems: list[str] = []
        inherited: list[str] = []
        for name, stage in self.by_name().items():
            own = {field: getattr(stage, field) for field in stage.model_fields_set}
            if "epochs" in own:
                own.setdefault("steps", None)  # steps would win over them
            before = list(resolved.values())
            resolved[name] = before[-1].model_copy(update=own) if before else stage
            found = resolved[name].problems()
            # Inherited ones are reported once.
            problems += [f"{name}.{problem}" for problem in found if problem not in inherited]
            inherited = found
        if self.quantized is None and self.deploy_tail is not None:
            problems.append(
                "deploy_tail is given and quantized=null: expected a quantized stage for it to go "
                "on from; set deploy_tail to null."
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self.model_copy(update=resolved)
