"""The page of a plan as a browser shows it: it fits."""

import html
import json

import pytest

import sat_tf
from sat_tf import BitPolicy
from sat_tf.planning.plan import plan_page
from sat_tf.training.models.mobilenet import mobilenet_v2
from tests.training.test_report_in_browser import BROWSER, browse

WIDTHS = (1280, 1100, 390)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(BROWSER is None, reason="no browser to open the page in"),
]

FRAMES = """<!doctype html><body>%s<pre id="found"></pre><script>
addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument;
    const seen = { overflow: page.documentElement.scrollWidth - frame.clientWidth };
    seen.cut = [...page.querySelectorAll(".wide")].filter(
      e => e.scrollWidth > e.clientWidth + 1).length;
    seen.loaded = frame.contentWindow.performance.getEntriesByType("resource").length;
    found[frame.width] = seen;
  }
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    model = mobilenet_v2(image_size=64, num_classes=10)
    page = html.escape(plan_page(sat_tf.explain(model, BitPolicy.mobile(4))))
    frames = "".join(
        f'<iframe width="{width}" height="900" srcdoc="{page}"></iframe>' for width in WIDTHS
    )
    (folder / "frames.html").write_text(FRAMES % frames, encoding="utf-8")
    shown = browse(folder, folder / "frames.html", "--dump-dom", "--virtual-time-budget=5000")
    text = shown.split('<pre id="found">')[1].split("</pre>")[0]
    return json.loads(html.unescape(text))


@pytest.mark.parametrize("width", [str(width) for width in WIDTHS])
def test_the_page_never_scrolls_sideways_and_loads_nothing(found, width):
    assert found[width]["overflow"] <= 0
    assert found[width]["loaded"] == 0


def test_nothing_is_cut_on_a_desktop(found):
    assert found["1280"]["cut"] == 0
