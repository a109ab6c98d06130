"""Pages as a browser shows them: nothing overflows, nothing is loaded, all can be read."""

import html
import json
import shutil
import subprocess

import matplotlib.image
import numpy as np
import pytest

import sat_tf
from sat_tf import BitPolicy, output_folder
from sat_tf.training.config import read_config
from sat_tf.training.loop.runner import write_report
from sat_tf.training.models.mobilenet import mobilenet_v2
from sat_tf.training.run_folder import RunFolder
from tests.training.report_folder import HOSTILE, fill

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        BROWSER is None,
        reason=f"no browser to open pages in: none of {', '.join(NAMES)} is installed",
    ),
]

QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
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
      charts: [...page.querySelectorAll("figure img")].map(e => [box(e).width, box(e).height]),
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


def _report(folder, layer="block_{}_relu"):
    run = fill(RunFolder(folder), layer=layer)
    write_report(run, read_config(run.file(output_folder.CONFIG)))
    return (folder / output_folder.REPORT).read_text(encoding="utf-8")


def _plan(folder):
    model = mobilenet_v2(image_size=64, num_classes=10)
    sat_tf.explain(model, BitPolicy.mobile(4)).write_page(folder / "plan.html")
    return (folder / "plan.html").read_text(encoding="utf-8")


PAGES = {"report": _report, "hostile": lambda folder: _report(folder, HOSTILE), "plan": _plan}


@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_windows_of_all_widths_load_nothing_and_run_nothing_but_a_plan(page, tmp_path):
    inside = f'height="900" srcdoc="{html.escape(PAGES[page](tmp_path))}"></iframe>'
    frames = "".join(f'<iframe width="{width}" {inside}' for width in WIDTHS)
    (tmp_path / "frames.html").write_text(FRAMES % frames, encoding="utf-8")
    shown = browse(tmp_path, tmp_path / "frames.html", "--dump-dom", "--virtual-time-budget=5000")
    text = shown.split('<pre id="found">')[1].split("</pre>")[0]
    measured = json.loads(html.unescape(text))
    for found in measured.values():
        assert found["overflow"] <= 0
        assert found["loaded"] == 0
        assert len(found["charts"]) == (0 if page == "plan" else 4)
        assert all(wide >= 300 and high >= 150 for wide, high in found["charts"])
        if page != "plan":
            assert found["scripts"] == 0
            assert found["title"] == "Run demo"
            assert found["headings"][:2] == ["Run demo", "Accuracy"]
    # Tables scroll by themselves on a phone, and fit wider windows.
    assert measured["1280"]["scrolling"] == 0 or page == "hostile"
    if page != "plan":
        assert measured["360"]["scrolling"] >= 1
        assert measured["900"]["scrolling"] == 0 or page == "hostile"


@pytest.mark.parametrize(("options", "dark"), [((), False), ((DARK,), True)])
def test_a_report_follows_the_light_and_the_dark(tmp_path, options, dark):
    _report(tmp_path)
    picture = tmp_path / "page.png"
    options = (*options, "--window-size=900,1200", f"--screenshot={picture}")
    browse(tmp_path, tmp_path / output_folder.REPORT, *options)
    pixels = matplotlib.image.imread(picture)[..., :3]
    assert pixels.shape[:2] == (1200, 900)
    # The paper covers most of it, and words and curves stand out from it.
    assert (np.median(pixels) < 0.2) == dark
    assert pixels.max() - pixels.min() > 0.7


def test_a_report_can_be_printed(tmp_path):
    _report(tmp_path)
    printed = tmp_path / "page.pdf"
    browse(tmp_path, tmp_path / output_folder.REPORT, f"--print-to-pdf={printed}")
    assert printed.read_bytes().startswith(b"%PDF")
