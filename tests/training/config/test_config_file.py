import pathlib

import pytest

from sat_tf.messages import RunError
from sat_tf.training.config import (
    DEMO,
    SHIPPED,
    config_text,
    load_yaml,
    parse_config,
    read_config,
)
from sat_tf.training.data import DATA_SETS

SMALLEST = "{name: small, data: {name: digits}, model: {name: mobilenet_v2}}"

# Files in configs/paper are no configurations but rows made of them.
CONFIGS = sorted(path for path in SHIPPED.glob("*/*.yaml") if path.parent.name != "paper")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_valid_and_named_after_its_file(path):
    changes = [] if "tfds" in DATA_SETS else ["data={name: digits}"]
    assert read_config(path, changes).name == f"{path.parent.name}_{path.stem}"


def test_the_configs_of_the_repository_are_those_of_the_package():
    repository = pathlib.Path(__file__).parents[3] / "configs"
    assert SHIPPED.resolve() == repository


def test_a_shipped_config_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "configs/digits/mobilenet_v2_w4a4.yaml"
    assert read_config(name) == read_config(DEMO)
    (tmp_path / "configs" / "digits").mkdir(parents=True)
    (tmp_path / name).write_text(SMALLEST)
    assert read_config(name).name == "small"  # one's own goes first


@pytest.mark.parametrize("text", ["4e-5", "4.0e-5", "4E-5", "0.00004", "+4e-5"])
def test_a_number_with_an_exponent_needs_no_point(text):
    config = parse_config(SMALLEST, [f"stages.float.weight_decay={text}"])
    assert config.stages.float.weight_decay == 4e-5


def test_overrides_win_over_the_file_and_later_ones_over_earlier_ones():
    config = parse_config(
        SMALLEST,
        ["seed=1", "stages.float.epochs=7", "seed=2", "model.options.rectifier_max=null"],
    )
    assert (config.seed, config.stages.float.epochs) == (2, 7)
    assert config.model.options == {"rectifier_max": None}
    assert parse_config(SMALLEST, ["seed=1"], seed=3).seed == 3


@pytest.mark.parametrize(
    "number",
    [
        "9" * 100_000,
        "-0x" + "f" * 5_000,
        "0b" + "1" * 100_000,
        "0" + "7" * 100_000,
        "1" + ":59" * 30_000,
        "!!int " + "9" * 5_000,
        str(2**63),
        str(-(2**63) - 1),
        "0x8000_0000_0000_0000",
    ],
    ids=["decimal", "hexadecimal", "binary", "octal", "sexagesimal", "tagged", "+", "-", "one bit"],
)
@pytest.mark.parametrize("key", ["seed", "policy.weight_bits", "policy.overrides.a.weight_bits"])
def test_integers_of_more_than_64_bits_are_refused(number, key):
    with pytest.raises(RunError, match=r"an integer .*, expected one of 64 bits at most"):
        parse_config(SMALLEST, [f"{key}={number}"])
    with pytest.raises(RunError, match=r"not valid YAML; line 1, column 7: received an integer"):
        parse_config(f"seed: {number}")
    with pytest.raises(RunError, match=r"an integer .*, expected one of 64 bits at most"):
        parse_config(f"{{? {number} : value}}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
        ("0x7fff_ffff_ffff_ffff", 2**63 - 1),
        ("-0b" + "1" * 63, -(2**63) + 1),
        ("0" * 100 + "7", 7),
        ("1:30", 90),
    ],
)
def test_integers_of_64_bits_are_read(text, value):
    assert load_yaml(text) == value


@pytest.mark.parametrize("name", ["1e5", "5E-8", "0x1f", "1_000", "yes", "null"])
def test_words_that_look_like_values_read_back_as_words(name):
    config = parse_config(SMALLEST).model_copy(update={"name": name})
    assert parse_config(config_text(config)) == config


def test_aliases_and_merge_keys_of_an_honest_size_are_read():
    text = "usual: &usual {epochs: 3, momentum: 0.9}\nlong: {<<: *usual, epochs: 30}\nb: *usual"
    found = load_yaml(text)
    assert found["long"] == {"epochs": 30, "momentum": 0.9}
    assert found["b"] == found["usual"]
