"""The documentation builds without a warning, is whole, and loads nothing from elsewhere."""

import html.parser
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

import sat_tf
import sat_tf.callbacks
import sat_tf.export
from docs import command_help
from sat_tf.commands.main import COMMANDS, command_parser
from sat_tf.training import data, models
from sat_tf.training.config import Config, parse_config

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [
    *(f"sat_tf.{name}" for name in sat_tf.__all__),
    *(f"sat_tf.export.{name}" for name in sat_tf.export.__all__),
    *(f"sat_tf.callbacks.{name}" for name in sat_tf.callbacks.__all__),
    "sat_tf.configs.LayerConfig",
    *(f"sat_tf.training.data.{name}" for name in data.__all__ if name.startswith("load")),
    *(f"sat_tf.training.models.{name}" for name in models.__all__ if name.islower()),
]
MODULES = {"sat_tf.callbacks", "sat_tf.configs", "sat_tf.export"}


def _is_there(module):
    return importlib.util.find_spec(module) is not None


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
    missing = [name for name in ("mkdocs", "material", "mkdocstrings") if not _is_there(name)]
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
    examples_of_docstrings_are_blocks_of_code(site)
    pages_load_nothing_from_elsewhere(site)
    assert not list(site.rglob("*.py"))


def every_public_name_is_on_an_api_page(site):
    shown = set()
    for page in (site / "api").glob("*.html"):
        shown |= _Loaded(page).identifiers
    # A page has both a function and its module if they have one name.
    shown |= {re.sub(r"\.(\w+)\.\1$", r".\1", name) for name in shown}
    assert [name for name in NAMES if name not in MODULES and name not in shown] == []


def examples_of_docstrings_are_blocks_of_code(site):
    for page in (site / "api").glob("*.html"):
        assert "<blockquote>" not in page.read_text(encoding="utf-8"), page.name


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


def test_the_page_of_commands_has_the_help_of_each_and_of_its_actions():
    page = (DOCS / "api" / "commands.md").read_text(encoding="utf-8")
    shown = command_help.on_page_markdown(page)
    for name in (*COMMANDS, "paper list", "paper run", "paper show", "paper table"):
        assert f"usage: sat-tf {name} " in shown


_CODE = re.compile(r"^```.*?^```|`[^`]*`|{[{%].*?[}%]}|\]\([^)]*\)", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_bits_are_spelled_in_one_way(page):
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    words = r"\b(?:two|three|four|five|six|seven|eight)[- ]bits?\b|\b\d-bits\b"
    assert re.findall(words, text, re.IGNORECASE) == []
    # Pages of measurements tell bits of weights from those of activations.
    if (
        page.parent.name != "measurements"
        and page.name != "glossary.md"
        and page != DOCS / "index.md"
    ):
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
            command_parser(words[0]).parse_args(words[1:])
        except (SystemExit, ModuleNotFoundError):
            if words[-1] != "--help":
                wrong.append((words, capsys.readouterr().err.splitlines()[-1:]))
    assert wrong == []


def test_every_option_of_an_example_is_one_of_its_command(capsys):
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *PAGES))
    command = re.compile(r"sat-tf (paper \w+|[a-z]+)(?= )((?:[^\n`\\#]|\\\n)* --[^\n`#]*)")
    named = {}
    for name, rest in command.findall(text):
        named.setdefault(name, set()).update(re.findall(r"(?<=\s)--[a-z_-]+", f" {rest}"))
    assert len(named) >= 8
    for name, options in named.items():
        command, *action = name.split()
        help_words = [*action, "--help"]
        with pytest.raises(SystemExit):
            command_parser(command).parse_args(help_words)
        known = set(re.findall(r"--[a-z_-]+", capsys.readouterr().out))
        assert options <= known, name


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


def test_every_key_of_a_configuration_is_described_with_its_default():
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


def _written(field):
    """The default as YAML has it."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None or isinstance(default, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[default]
    return f"`{default}`"


def test_the_configuration_on_the_page_is_one():
    page = (DOCS / "guides" / "configurations.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    config = parse_config(text)
    assert config.stages.quantized.base_learning_rate == 0.02
