"""The page that shows all figures of a folder, each beside what the paper prints."""

import base64
import pathlib

from sat_tf.figures.figure import Claim, Figure
from sat_tf.figures.folder import read_table
from sat_tf.page import page, row, table, text
from sat_tf.version import __version__


def gallery(folder: pathlib.Path, figures: list[Figure]) -> str:
    """HTML of a page of its own: pictures are inside, numbers are those of the CSV files.

    Args:
        folder: of the files.
        figures: those to show, if the folder has them.

    Raises:
        RunError: a CSV file is not what was written.
    """
    body = [
        "<p>Numbers and pictures of <cite>Towards Efficient Training for Neural Network "
        "Quantization</cite> that need no ImageNet, computed by sat-tf "
        f"{text(__version__)}. A value “a ± b” is a mean and the standard deviation of one "
        "sample.</p>"
    ]
    for figure in figures:
        numbers = read_table(folder, figure)
        if numbers is not None:
            body += _section(folder, figure, figure.compare(numbers))
    return page("The paper's figures, recomputed", body, _STYLE)


def _section(folder: pathlib.Path, figure: Figure, claims: list[Claim]) -> list[str]:
    drawing = (folder / f"{figure.name}.svg").read_bytes()
    # As an image: inside the page itself, parts of two drawings could have the same name.
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    files = ", ".join(
        f'<a href="{figure.name}{suffix}">{figure.name}{suffix}</a>'
        for suffix in (".csv", ".png", ".svg")
    )
    rows = [
        row(
            [
                text(claim.about),
                text(claim.paper),
                text(claim.ours),
                '<span class="good">✓ agrees</span>'
                if claim.holds
                else '<span class="bad">✗ differs</span>',
                text(claim.reason),
            ]
        )
        for claim in claims
    ]
    return [
        f'<h2 id="{figure.name}">{text(figure.place)}: {text(figure.title)}</h2>',
        f'<figure><img src="{source}" alt="{text(figure.title)}">'
        f"<figcaption>{text(figure.caption)} {files}</figcaption></figure>",
        table(["", "paper", "here", "", "by which measure"], rows, label="paper and here"),
    ]


_STYLE = """
figure { margin: .6rem 0; } figcaption { color: var(--soft); max-width: 60rem; margin: .3rem 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; padding: .4rem;
  border-radius: 4px; box-sizing: border-box; }
a { color: var(--bars); } .good, .bad { white-space: nowrap; } h2 { margin-top: 2.2rem; }
td { vertical-align: top; padding-top: .2rem; padding-bottom: .2rem; }
"""
