"""The configuration of a row's run, and that of the float model that it starts from."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sat_tf.output_folder import FLOAT_MODEL
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import DEFAULT_QUANTIZERS
from sat_tf.training.config.config import CalibrationConfig, Config, ExportConfig, parse_config
from sat_tf.training.reproduction.library import Entry, base_text, data_sets

# The fields of a policy that matter if nothing is rounded or clipped.
_FLOAT_FIELDS = ("rescale", "weight_range", "detach_max", "input_range", "unsupported")
# Rows that name no weights have the paper's, whatever is the best known since, and end with their
# last epoch.
_OF_PAPER = {
    "policy.weight_quantizer": DEFAULT_QUANTIZERS["weight"],
    "training.keep": "last",
}
# The settings that do not affect the outcome of a run.
_WITHOUT_EFFECT: dict[str, Any] = {
    "name": True,
    "distribution": True,
}


def resolve(
    entry: Entry,
    *,
    data: str | None = None,
    data_dir: str | None = None,
    changes: Iterable[str] = (),
    seed: int | None = None,
) -> Config:
    """The configuration of a row.

    The recipe of the row's network comes first, then the changes of the data set, of the row, and
    last `changes`.

    Returns:
        A configuration whose name consists of the network, the data, the bits, the seed, and an
        eight-digit hash of everything its outcome depends on: rows with the same training share it.
        If the row starts from the float model of another run, see `other_start`, that is named as a
        file relative to the folder of all runs.
    """
    config = _config(entry, data, data_dir, tuple(changes), seed, {})
    if entry.row.measures == "float":
        return _named(float_part(config))
    start = other_start(entry, data=data, data_dir=data_dir, changes=changes, seed=seed)
    if start is not None:
        training = config.training.model_copy(update={"float_model": f"{start.name}/{FLOAT_MODEL}"})
        config = config.model_copy(update={"training": training})
    return _named(config)


def other_start(
    entry: Entry,
    *,
    data: str | None = None,
    data_dir: str | None = None,
    changes: Iterable[str] = (),
    seed: int | None = None,
) -> Config | None:
    """The run of the float model that a row starts from, if it is not that of its own method."""
    if not entry.row.start:
        return None
    config = _config(entry, data, data_dir, tuple(changes), seed, entry.row.start)
    return None if config.training.float_model is not None else float_part(config)


def _config(
    entry: Entry,
    data: str | None,
    data_dir: str | None,
    changes: tuple[str, ...],
    seed: int | None,
    start: Mapping[str, Any],
) -> Config:
    """The configuration of a row, still without a name; `start` comes after the row."""
    chosen = data_sets()[data or entry.data]
    row = entry.row
    bits = row.set.get("policy.activation_bits", 0)
    layers: list[Mapping[str, Any]] = [
        {"data": chosen.data, **_OF_PAPER},
        chosen.set,
        chosen.models.get(row.base, {}),
        chosen.activation_bits.get(bits, {}),
        row.set,
        start,
        {} if data_dir is None else {"data.options.data_dir": data_dir},
    ]
    return parse_config(
        base_text(row.base),
        # JSON is YAML on one line.
        [
            *(f"{key}={json.dumps(value)}" for layer in layers for key, value in layer.items()),
            *changes,
        ],
        seed=seed,
        subject=entry.id,
    )


def float_part(config: Config) -> Config:
    """The run that trains only the float model from which this one starts.

    Settings that such a run does not depend on have their defaults, so that all runs that can share
    a float model give the same configuration.
    """
    calibration = config.calibration
    if not calibration.final_statistics:
        calibration = CalibrationConfig(num_images=0)
    elif not calibration.clipping_levels:
        calibration = calibration.model_copy(update={"clipping_levels": True})
    stages = config.stages.model_copy(update={"quantized": None})
    return _named(
        config.model_copy(
            update={
                "policy": _float_policy(config),
                "stages": stages,
                "calibration": calibration,
                "export": ExportConfig(),
                "recipes": config.recipes.in_stages(["float"]),
                "training": config.training.model_copy(update={"float_model": None}),
            }
        )
    )


def digest(config: Config) -> str:
    """An eight-digit hash of everything the outcome of a run depends on."""
    values = config.model_dump(exclude=_WITHOUT_EFFECT)
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _float_policy(config: Config) -> BitPolicy:
    if config.training.start == "vanilla":
        return BitPolicy().of_one_kind()
    policy = config.policy
    overrides = {
        pattern: {name: value for name, value in fields.items() if name in _FLOAT_FIELDS}
        for pattern, fields in policy.overrides.items()
    }
    return BitPolicy(
        **{name: getattr(policy, name) for name in _FLOAT_FIELDS},
        overrides={pattern: fields for pattern, fields in overrides.items() if fields},
    ).of_one_kind()


def _named(config: Config) -> Config:
    model = "model" if config.model is None else config.model.name
    words = [model, config.data.options.get("builder", config.data.name)]
    if config.stages.quantized is not None:
        policy = config.policy
        words.append(f"w{policy.weight_bits}a{policy.activation_bits or 'float'}")
    elif config.training.start == "vanilla":
        words.append("vanilla")
    else:
        words.append(f"float_{config.policy.rescale}")
    words += [f"seed{config.seed}", digest(config)]
    # Names of builders may have slashes and colons; run names are folder names.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(str(word) for word in words))
    return config.model_copy(update={"name": name})
