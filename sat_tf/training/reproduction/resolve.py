"""The configuration of a row's run, and that of the float model that it starts from."""

import hashlib
import json
import re
import types
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


def resolve(entry: Entry, **chosen: Any) -> Config:
    """The configuration of a row, with what is `chosen` for `configure`.

    Its name consists of the network, the data, the bits, the seed, and an eight-digit hash of
    everything its outcome depends on: rows with the same training share it. The float model of
    another run, see `other_start`, is named as a file relative to the folder of all runs.
    """
    config = configure(entry, **chosen)
    if entry.row.measures == "float":
        return _named(float_part(config))
    start = other_start(entry, **chosen)
    if start is not None:
        training = config.training.model_copy(update={"float_model": f"{start.name}/{FLOAT_MODEL}"})
        config = config.model_copy(update={"training": training})
    return _named(config)


def other_start(entry: Entry, **chosen: Any) -> Config | None:
    """The run of the float model that a row starts from, if it is not that of its own method."""
    if not entry.row.start:
        return None
    config = configure(entry, entry.row.start, **chosen)
    return None if config.training.float_model is not None else float_part(config)


def configure(
    entry: Entry,
    start: Mapping[str, Any] = types.MappingProxyType({}),
    *,
    data: str | None = None,
    data_dir: str | None = None,
    changes: Iterable[str] = (),
    seed: int | None = None,
) -> Config:
    """The configuration of a row, still without a name.

    The recipe of the row's network comes first, then the changes of the data set, of the row, of
    its start, and last `changes`.
    """
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
    policy = BitPolicy()
    if config.training.start != "vanilla":
        overrides = {
            pattern: {name: value for name, value in fields.items() if name in _FLOAT_FIELDS}
            for pattern, fields in config.policy.overrides.items()
        }
        policy = BitPolicy(
            **{name: getattr(config.policy, name) for name in _FLOAT_FIELDS},
            overrides={pattern: fields for pattern, fields in overrides.items() if fields},
        )
    return _named(
        config.model_copy(
            update={
                "policy": policy.of_one_kind(),
                "stages": config.stages.model_copy(update={"quantized": None}),
                "calibration": calibration,
                "export": ExportConfig(),
                "recipes": config.recipes.in_stages(["float"]),
                "training": config.training.model_copy(update={"float_model": None}),
            }
        )
    )


def digest(config: Config) -> str:
    """An eight-digit hash of everything the outcome of a run depends on."""
    values = config.model_dump(exclude={"name", "distribution"})
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


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
