import ast
import html.parser
import importlib
import importlib.util
import os
import pathlib
import pkgutil
import re
import shlex
import subprocess
import sys

import keras as keras3  # noqa: TID251 - the pages for Keras 3
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from PIL import Image

import sat_tf
import sat_tf.callbacks
import sat_tf.export
from docs import command_help
from sat_tf import configs
from sat_tf.commands.main import COMMANDS, command_parser
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.training import data, models
from sat_tf.training.config import Config, parse_config

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [
    *(f"sat_tf.{name}" for name in sat_tf.__all__),
    *(f"sat_tf.export.{name}" for name in sat_tf.export.__all__),
    *(f"sat_tf.callbacks.{name}" for name in sat_tf.callbacks.__all__),
    *(f"sat_tf.configs.{name}" for name in configs.__all__ if name != "PlacedConfig"),
    *(f"sat_tf.training.data.{name}" for name in data.__all__ if name.startswith("load")),
    *(f"sat_tf.training.models.{name}" for name in models.__all__ if name.islower()),
]
MODULES = {"sat_tf.callbacks", "sat_tf.configs", "sat_tf.export"}


class _Loaded(html.parser.HTMLParser):
    """The addresses that a page loads by itself, and the identifiers of its parts."""

    def __init__(self, page):
        super().__init__()
        self.addresses, self.identifiers = [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            self.identifiers.add(given["id"])
        if tag == "link" and given.get("rel") != "canonical":
            self.addresses.append(given.get("href", ""))
        elif tag != "a":
            self.addresses.append(given.get("src", ""))


@pytest.mark.thorough
def test_the_site_builds_without_a_warning_and_is_whole(tmp_path):
    # One test, because it builds once: on all cores, each would have a site of its own.
    names = ("mkdocs", "material", "mkdocstrings")
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"without {', '.join(missing)}; pip install '.[docs]'")
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    every_public_name_is_on_an_api_page(site)
    pages_load_nothing_from_elsewhere(site)
    assert not list(site.rglob("*.py"))


def every_public_name_is_on_an_api_page(site):
    shown = set()
    for page in (site / "api").glob("*.html"):
        shown |= _Loaded(page).identifiers
        # Examples of docstrings are blocks of code.
        assert "<blockquote>" not in page.read_text(encoding="utf-8"), page.name
    # A page has both a function and its module if they have one name.
    shown |= {re.sub(r"\.(\w+)\.\1$", r".\1", name) for name in shown}
    assert [name for name in NAMES if name not in MODULES and name not in shown] == []


def pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) >= 40
    for page in pages:
        elsewhere = [address for address in _Loaded(page).addresses if "//" in address]
        assert elsewhere == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", sheet.read_text(encoding="utf-8"))


def test_every_picture_is_on_a_page():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = settings + "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for picture in (DOCS / "images").iterdir():
        assert f"images/{picture.name}" in pages, picture.name


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.stem
)
def test_every_file_that_a_page_names_is_there(page):
    folders = "sat_tf|tests|benchmarks|examples|configs|docs"
    named = re.findall(rf"\b((?:{folders})/[\w/.]*\w)", page.read_text(encoding="utf-8"))
    # Addresses on pages are written from the page, and have been checked with the site.
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_page_of_commands_has_the_help_of_each():
    page = (DOCS / "api" / "commands.md").read_text(encoding="utf-8")
    shown = command_help.on_page_markdown(page)
    for name in COMMANDS:
        assert f"usage: sat-tf {name} " in shown


_CODE = re.compile(r"^```.*?^```|`[^`]*`|{[{%].*?[}%]}|\]\([^)]*\)", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_bits_are_spelled_in_one_way(page):
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    words = r"\b(?:two|three|four|five|six|seven|eight)[- ]bits?\b|\b\d-bits\b"
    assert re.findall(words, text, re.IGNORECASE) == []
    # Pages of measurements tell bits of weights from those of activations.
    exempt = DOCS / "index.md", DOCS / "glossary.md"
    if page.parent.name != "measurements" and page not in exempt:
        assert re.findall(r"\bw\da\d\b", text) == []


def _examples():
    """The words of every line of a shell that starts a command, of pages and of the help."""
    pages = (ROOT / "README.md", *PAGES)
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [block for language, block in blocks if not language]
    for name in COMMANDS:
        lines += command_parser(name).epilog.splitlines()
    shell = "\n".join(lines).replace("\\\n", " ")
    for line in re.findall(r"^ *sat-tf (.*)", shell, re.MULTILINE):
        # Behind two spaces a comment follows.
        yield shlex.split(re.split(r"  +|[<>|]", line)[0].replace("$(cat policy.yaml)", "it"))


def test_every_example_is_of_a_command_and_its_options(capsys):
    examples = [words for words in _examples() if words and not words[0].startswith("-")]
    assert {words[0] for words in examples} >= set(COMMANDS)
    wrong = []
    for words in examples:
        if words[0] == "COMMAND":
            continue
        try:
            parsed = command_parser(words[0]).parse_args(words[1:])
            # Networks have no names of their own: a file, a folder of runs, or a name of Keras.
            if not re.search(r"[./:]", str(getattr(parsed, "model", None) or ".")):
                wrong.append((words, "is no model"))
        except (SystemExit, ModuleNotFoundError):
            if words[-1] != "--help":
                wrong.append((words, capsys.readouterr().err.splitlines()[-1:]))
    assert wrong == []


def test_every_option_of_an_example_is_one_of_its_command(capsys):
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *PAGES))
    command = re.compile(r"sat-tf ([a-z]+)(?= )((?:[^\n`\\#]|\\\n)* --[^\n`#]*)")
    named = {}
    for name, rest in command.findall(text):
        named.setdefault(name, set()).update(re.findall(r"(?<=\s)--[a-z_-]+", f" {rest}"))
    assert len(named) >= 8
    for name, options in named.items():
        command, *action = name.split()
        with pytest.raises(SystemExit):
            command_parser(command).parse_args([*action, "--help"])
        assert options <= set(re.findall(r"--[a-z_-]+", capsys.readouterr().out)), name


def _keys(section, above=""):
    """The dotted keys of a configuration whose values are no sections, with their defaults."""
    for name, field in section.model_fields.items():
        inner = _section_of(field.annotation)
        if inner is None or f"{above}{name}" == "policy":
            yield f"{above}{name}", field
        else:
            yield from _keys(inner, f"{above}{name}.")


def _section_of(annotation):
    if hasattr(annotation, "model_fields"):
        return annotation
    inner = (_section_of(part) for part in getattr(annotation, "__args__", ()))
    return next((section for section in inner if section is not None), None)


def _written(field):
    """The default as YAML has it."""
    if field.is_required():
        return "required"
    default = str(field.get_default(call_default_factory=True))
    return f"`{ {'None': 'null', 'True': 'true', 'False': 'false'}.get(default, default) }`"


def test_every_key_of_a_configuration_is_described_with_its_default_beside_an_example():
    page = (DOCS / "guides" / "configurations.md").read_text(encoding="utf-8")
    recipes = (DOCS / "guides" / "recipes.md").read_text(encoding="utf-8")
    keys = dict(_keys(Config))
    assert len(keys) >= 40
    for key, field in keys.items():
        section, *below = key.split(".")
        if section == "recipes":
            assert f"`{below[-1]}`" in recipes or below[-2] == "model", key
            continue
        if key == "policy":
            assert "## `policy`" in page
            continue
        # The stages have the same keys.
        name = below[-1] if section == "stages" else key
        assert f"| `{name}` | {_written(field)} |" in page, key
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    config = parse_config(text)
    assert config.stages.quantized.base_learning_rate == 0.02


README = (ROOT / "README.md").read_text()
LARGEST_README = 8 * 1024
_COMPILE = "q.compile('sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True))"
_FIT = "q.fit(pixels.astype('float32'), labels, verbose=0)"


def _classifier(library):
    layers, unbiased = library.layers, {"use_bias": False}
    first = layers.Conv2D(4, 3, name="conv", **unbiased)
    second = layers.Conv2D(32, 3, padding="same", name="block_1_conv", **unbiased)
    stack = [layers.Input((8, 8, 3))]
    for conv in (first, second):
        stack += [conv, layers.BatchNormalization(), layers.ReLU()]
    stack += [layers.GlobalAveragePooling2D(), layers.Dense(3, name="classifier")]
    return library.Sequential(stack)


def _pixels_and_labels():
    draw = np.random.default_rng(0)
    return draw.integers(0, 256, (64, 8, 8, 3)).astype(np.uint8), draw.integers(0, 3, 64)


_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def _python_blocks(page):
    return _BLOCK.findall((ROOT / page).read_text())


@pytest.mark.thorough
def test_the_code_in_the_readme_and_its_guides_runs_and_no_code_differs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    pixels, labels = _pixels_and_labels()
    names = {"keras": keras, "model": _classifier(keras), "pixels": pixels, "labels": labels}
    (whole,) = _python_blocks("README.md")
    (in_tfmots_words,) = _python_blocks("docs/guides/tfmot.md")
    _, in_litert, real_of_codes = _python_blocks("docs/guides/export.md")
    exec(whole.replace("q.compile(...)", _COMPILE).replace("q.fit(...)", _FIT), names)
    assert names["certificate"].codes_differing == 0
    exec(in_litert, names)
    assert "scores" in names
    assert pathlib.Path("model.tflite").is_file()

    sat_tf.export_tflite(names["q"], "codes.tflite", output_type="int8")
    exec(in_litert.replace("model.tflite", "codes.tflite"), names)
    exec(real_of_codes, names)
    runtime = Runtime(pathlib.Path("codes.tflite").read_bytes(), keep_tensors=False)
    (expected,) = runtime.run(names["pixels"])
    # Scales of LiteRT may be numbers of Python, in double precision.
    np.testing.assert_array_equal(np.float32(names["real"]), [expected])

    # Both ways to quantize give the same model.
    names["tfmot"], names["sat_tf"] = tfmot, sat_tf
    quantizes, _ = in_tfmots_words.split("\n\n")  # the rest trains and exports
    exec(quantizes, names)
    one = sat_tf.quantize_model(names["model"], sat_tf.BitPolicy(weight_bits=4, activation_bits=4))
    pixels = names["pixels"].astype(np.float32)
    np.testing.assert_array_equal(names["q"](pixels), one(pixels))


def test_the_readme_is_a_front_door_whose_links_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) >= 4
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert len(README.encode()) <= LARGEST_README
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if "|" in line]
    assert not any(cell == "" for row in rows for cell in row[1:])
    # The first page of the documentation has its lines.
    assert _python_blocks("docs/index.md") == _python_blocks("README.md")


# -- code on pages ---------------------------------------------------------------------------------

PAGES_OF_CODE = [
    str(page.relative_to(DOCS))
    for folder in ("start", "guides")
    for page in sorted((DOCS / folder).glob("*.md"))
    if _BLOCK.search(page.read_text(encoding="utf-8"))
]
_OF_KERAS3 = {"start/keras3.md"}
_OF_FEATURES = {"guides/input_range.md"}
_SCALED = {"start/mobile_engineer.md"}
_COMPILES_FOR_AN_NPU = {"start/ethos_u.md", "guides/allocate.md"}


def _names(page):
    """The names that the blocks of a page take for granted."""
    library = keras3 if page in _OF_KERAS3 else keras
    pixels, labels = _pixels_and_labels()
    model = _classifier(library)
    fed = (0, 1) if page in _SCALED else (0, 255)
    images = (pixels / 255).astype(np.float32) if page in _SCALED else pixels
    values = images.astype(np.float32)
    batches = tf.data.Dataset.from_tensor_slices((values, labels)).batch(32)
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    names = {"sat_tf": sat_tf, "tfmot": tfmot, "keras": library, "loss": loss, "labels": labels}
    names |= {"images": images, "pixels": pixels, "class_names": ["one", "two", "three"]}
    names |= {"dataset": batches, "batches": batches, "held_out": batches}
    names |= {"policy": sat_tf.BitPolicy.mobile(8), "np": np}
    if page in _OF_FEATURES:
        names["image_model"] = _classifier(library)
        model = library.Sequential([library.layers.Input((6,)), library.layers.Dense(3)])
        names["features"] = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
        return {**names, "model": model}
    model(values, training=True)  # statistics as if it had been trained
    q = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, input_range=fed))
    sat_tf.calibrate(q, values)
    q.compile("sgd", loss)
    sat_tf.export_tflite(q, "model.tflite")
    return {**names, "model": model, "q": q}


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES_OF_CODE)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    if page in _COMPILES_FOR_AN_NPU and importlib.util.find_spec("ethosu") is None:
        pytest.skip("without ethos-u-vela; pip install '.[ethos]'")
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    names = _names(page)
    pathlib.Path("photos").mkdir()
    for place, pixels in enumerate(names["pixels"]):
        Image.fromarray(pixels).save(f"photos/{place}.png")
    for block in _python_blocks(f"docs/{page}"):
        trained = block.replace("q.compile(...)", "q.compile('sgd', loss)")
        exec(trained.replace("q.fit(...)", "q.fit(dataset)"), names)


# -- the paper's equations -------------------------------------------------------------------------

GUIDE = (ROOT / "docs" / "paper" / "equations.md").read_text(encoding="utf-8")
FUNCTIONS = sorted(set(re.findall(r"`((?:sat_tf|benchmarks)\.[\w.]+)`", GUIDE)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", GUIDE)))
ROWS = [line for line in GUIDE.splitlines() if re.match(r"\| (\(|rule|Figure|Table|\d)", line)]

# The equations that have a name in the paper's LaTeX source, with their printed numbers.
NUMBERS = dict(
    re.findall(
        r"(\S+) (\S+)",
        """
        eq:forward 1  eq:linear_op 1a  eq:batchnorm_case 3  eq:kaiming_case 4  eq:clamp 5
        eq:clamp_only 6  eq:constant_rescale 7  eq:quant 8  eq:quant_weight 9
        eq:quant_constant_rescale 10  eq:clip 11  eq:STE 12  eq:grad_alpha 13
        eq:appendix:var_logit_values S4  eq:appendix:var_weight_last_layer S5
        eq:appendix:batchnorm_case S15  eq:appendix:kaiming_case S16
        eq:appendix:empirical_verification S17  eq:appendix:kappa_0 S17  eq:appendix:kappa_1 S17
        eq:stddev_rescale S23  eq:appendix:clip S24  eq:appendix:STE S25  eq:appendix:grad_alpha S26
        """,
    )
)
# Steps of derivations, which nothing computes.
DERIVED = {
    *("eq:appendix:last_layer_forward", "eq:appendix:var_logit_values_derivation"),
    *("eq:appendix:forward", "eq:appendix:var_variables", "eq:appendix:mean_square_avg_pool"),
    *("eq:appendix:sigma_square_avg_pool", "eq:appendix:grad_stats", "eq:appendix:batchnorm"),
    *("eq:appendix:gradient", "eq:appendix:var_grad", "eq:appendix:var_grad_recursive"),
}


def test_every_equation_has_a_row_with_its_number_and_steps_of_derivations_are_named_as_such():
    for label, number in NUMBERS.items():
        (row,) = [row for row in ROWS if f"`{label}`" in row]
        assert f"({number})" in row.strip("| ").split(" | ")[0]
    assert set(re.findall(r"`(eq:[\w:]+)`", GUIDE)) == {*NUMBERS, *DERIVED}
    (paragraph,) = [text for text in GUIDE.split("\n\n") if text.startswith("Derived only")]
    assert set(re.findall(r"`(eq:[\w:]+)`", paragraph)) == DERIVED


def test_all_numbers_are_there():
    firsts = "".join(row.split("|")[1] for row in ROWS)
    numbers = set(re.findall(r"\((\d+|S\d+)\)", firsts))
    for first, last in re.findall(r"\(S(\d+)\) to \(S(\d+)\)", GUIDE):
        numbers |= {f"S{number}" for number in range(int(first), int(last) + 1)}
    assert numbers >= {*map(str, range(1, 14)), *(f"S{number}" for number in range(1, 29))}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:24])
def test_every_row_names_a_function_and_a_test(row):
    *_, functions, tests = row.strip("| ").split(" | ")
    assert re.search(r"`(sat_tf|benchmarks)\.", functions)
    assert "`tests/" in tests
    assert "::test_" in tests


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_there(name):
    assert callable(pkgutil.resolve_name(name))


@pytest.mark.parametrize("name", TESTS)
def test_tests_are_there(name):
    path, function = name.split("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_nothing_in_the_guide_is_left_unread():
    # A name that is written in another way would not be checked.
    in_backticks = re.findall(r"`([^`]+)`", GUIDE)
    others = {word for word in in_backticks if not word.startswith("eq:")} - {*FUNCTIONS, *TESTS}
    words = {"tests/reference.py", "python -m benchmarks.paper.figures", "policy.detach_max"}
    assert others == words
