"""The report as a browser shows it: nothing overflows, nothing is loaded, all can be read."""

import html
import json
import shutil
import subprocess

import matplotlib.image
import numpy as np
import pytest

from sat_tf import output_folder
from sat_tf.training.loop.outcome import write_report
from sat_tf.training.run_folder import RunFolder
from tests.training.report_folder import HOSTILE, fill

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason=f"no browser to open the report in: none of {', '.join(NAMES)} is installed",
)

QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
DARK = "--blink-settings=preferredColorScheme=0"
WIDTHS = (1280, 900, 360)

# Frames as wide as a desktop, a small window and a phone; a frame made of text can be looked into.
FRAMES = """<!doctype html><body>%s<pre id="found"></pre><script>
addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement;
    const box = element => element.getBoundingClientRect();
    const tables = [...page.querySelectorAll(".wide")].filter(e => e.clientWidth);
    found[frame.width] = {
      title: page.title,
      overflow: root.scrollWidth - frame.clientWidth,
      headings: [...page.querySelectorAll("h1, h2")].map(element => element.textContent),
      charts: [...page.querySelectorAll("svg.chart")].map(e => [box(e).width, box(e).height]),
      outside: [...page.querySelectorAll("svg.chart *")].filter(e => {
        const own = box(e), all = box(e.ownerSVGElement);
        return own.width && (own.left < all.left - 1 || own.right > all.right + 1);
      }).length,
      scrolling: tables.filter(e => e.scrollWidth > e.clientWidth + 1).length,
      loaded: frame.contentWindow.performance.getEntriesByType("resource").length,
      scripts: page.scripts.length,
    };
  }
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""


def browse(tmp_path, page, *options):
    command = [BROWSER, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module", params=["block_{}_relu", HOSTILE], ids=["usual", "hostile"])
def layer(request):
    return request.param


@pytest.fixture(scope="module")
def measured(layer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_report(fill(RunFolder(folder), layer=layer))
    text = (folder / output_folder.REPORT).read_text(encoding="utf-8")
    frames = "".join(
        f'<iframe width="{width}" height="900" srcdoc="{html.escape(text)}"></iframe>'
        for width in WIDTHS
    )
    page = folder / "frames.html"
    page.write_text(FRAMES % frames, encoding="utf-8")
    shown = browse(folder, page, "--dump-dom", "--virtual-time-budget=5000")
    found = shown.split('<pre id="found">')[1].split("</pre>")[0]
    return json.loads(html.unescape(found))


@pytest.mark.thorough
@pytest.mark.parametrize("width", [str(width) for width in WIDTHS])
def test_the_page_never_scrolls_sideways(measured, width):
    assert measured[width]["overflow"] <= 0


def test_tables_scroll_by_themselves_on_a_phone_and_fit_into_900_pixels(measured, layer):
    assert measured["360"]["scrolling"] >= 1
    assert measured["900"]["scrolling"] == 0 or layer == HOSTILE


@pytest.mark.parametrize("width", [str(width) for width in WIDTHS])
def test_charts_are_large_enough_and_nothing_sticks_out_of_them(measured, width):
    charts = measured[width]["charts"]
    assert len(charts) == 4
    assert all(wide >= 300 and high >= 150 for wide, high in charts)
    assert measured[width]["outside"] == 0


def test_nothing_is_loaded_and_nothing_runs(measured):
    for found in measured.values():
        assert (found["loaded"], found["scripts"]) == (0, 0)
        assert found["title"] == "Run demo"
        assert found["headings"][:2] == ["Run demo", "Accuracy"]


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "dark"), [((), False), ((DARK,), True)])
def test_it_follows_the_light_and_the_dark(tmp_path, options, dark):
    folder = fill(RunFolder(tmp_path))
    write_report(folder)
    picture = tmp_path / "page.png"
    options = (*options, "--window-size=900,1200", f"--screenshot={picture}")
    browse(tmp_path, folder.file(output_folder.REPORT), *options)
    pixels = matplotlib.image.imread(picture)[..., :3]
    assert pixels.shape[:2] == (1200, 900)
    # The paper covers most of it, and words and curves stand out from it.
    assert (np.median(pixels) < 0.2) == dark
    assert pixels.max() - pixels.min() > 0.7


@pytest.mark.thorough
def test_it_can_be_printed(tmp_path):
    folder = fill(RunFolder(tmp_path))
    write_report(folder)
    printed = tmp_path / "page.pdf"
    browse(tmp_path, folder.file(output_folder.REPORT), f"--print-to-pdf={printed}")
    assert printed.read_bytes().startswith(b"%PDF")
