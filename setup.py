"""The long description, made of README.md; all else about the package is in pyproject.toml."""

import pathlib
import re

import setuptools

_README = pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def long_description(readme: str) -> str:
    """The README for a page where the files that it links to are not.

    Links into the repository become their words, its pictures go with their captions, and the
    package is installed by its name.
    """
    text = re.sub(
        r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+(?:\*[^*]+\*\n+)?", "", readme, flags=re.MULTILINE
    )
    text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)
    text = re.sub(r"pip install \.(?=\s)", "pip install sat-tf", text)
    return re.sub(r"pip install '\.\[", "pip install 'sat-tf[", text)


setuptools.setup(
    long_description=long_description(_README), long_description_content_type="text/markdown"
)
