"""Pages in a headless Chromium, and exported files in LiteRT.js there.

LiteRT.js is LiteRT's WebAssembly runtime. It gives outputs only, of float32, int32 and uint8: a
file runs as it is, for its outputs, and as a copy that also gives every tensor of codes, as int32.
"""

import contextlib
import http.server
import json
import mimetypes
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from every_code import with_every_code

from sat_tf.exact.operations.graph import Graph

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "web"
# Where the npm packages lie, if not in the example's folder.
MODULES_VARIABLE = "SAT_TF_NODE_MODULES"

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-port=0",),
)
# The builds that run on one thread without promises inside, by what a browser must have for them.
BUILDS = {"relaxed SIMD": "litert_wasm_internal.js", "SIMD": "litert_wasm_compat_internal.js"}

_CODES_PAGE = """<!doctype html>
<script type="importmap">{"imports": {
  "@litertjs/core": "/web/node_modules/@litertjs/core/dist/index.js",
  "@litertjs/wasm-utils": "/web/node_modules/@litertjs/wasm-utils/dist/index.js"}}</script>
<script type="module">
const post = (name, body) => fetch(`/posted/${name}`, {method: 'POST', body});
try {
  const {loadLiteRt, loadAndCompile, Tensor} = await import('@litertjs/core');
  await loadLiteRt('/web/node_modules/@litertjs/core/wasm/BUILD');
  const images = new Uint8Array(await (await fetch('/files/images')).arrayBuffer());
  for (const file of ['original', 'copy']) {
    const model = await loadAndCompile(`/files/${file}`, {accelerator: 'wasm'});
    const shape = Array.from(model.getInputDetails()[0].shape);
    const size = shape.reduce((product, side) => product * side, 1);
    await post(`${file}-names`, JSON.stringify(model.getOutputDetails().map(({name}) => name)));
    for (let i = 0; i * size < images.length; i++) {
      const input = new Tensor(images.slice(i * size, (i + 1) * size), shape);
      const outputs = await model.run(input);
      for (const [place, output] of outputs.entries())
        await post(`${file}-${i}-${place}`, output.toTypedArray().slice());
      [input, ...outputs].forEach((tensor) => tensor.delete());
    }
    model.delete();
  }
  await post('done', '');
} catch (error) { await post('error', `${error} ${error.stack ?? ''}`); }
</script>
"""

# A page posts its results under other names, and then one of these.
_DONE, _ERROR = "done", "error"


def node_modules() -> pathlib.Path:
    """The folder of npm packages that the example uses."""
    given = os.environ.get(MODULES_VARIABLE)
    return pathlib.Path(given) if given else EXAMPLE / "node_modules"


def litert_version() -> str:
    """The version of LiteRT.js that is installed."""
    return str(json.loads((node_modules() / "@litertjs/core/package.json").read_text())["version"])


def missing() -> str | None:
    """What has to be installed before a page can run; None where all is there."""
    if not (node_modules() / "@litertjs" / "core").is_dir():
        return (
            f"no @litertjs/core in {node_modules()}: run npm install in examples/web, or set "
            f"{MODULES_VARIABLE}"
        )
    if not any(map(shutil.which, _BROWSERS)):
        return f"none of {', '.join(_BROWSERS)} is installed"
    return None


def run_page(page: str, files: Mapping[str, bytes], *, seconds: float = 300) -> dict[str, bytes]:
    """Opens a page, and waits until it has posted all its results.

    The example lies in `/web/`, `files` in `/files/`. The page posts each result to `/posted/NAME`,
    and in the end an empty one to `/posted/done`, or a message to `/posted/error`.

    Args:
        page: its HTML.
        files: by name.
        seconds: how long it may take.

    Returns:
        What it has posted, by name.

    Raises:
        RuntimeError: something is missing, the page posted an error, or it took too long.
    """
    if reason := missing():
        raise RuntimeError(reason)
    served = {"/": page.encode(), **{f"/files/{name}": data for name, data in files.items()}}
    posted: dict[str, bytes] = {}
    finished = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            data = served[path] if path in served else _example_file(path)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Type", _content_type(path))
            # As threads need it, which none of these pages starts.
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.end_headers()
            self.wfile.write(data or b"")

        def do_POST(self) -> None:
            name = self.path.removeprefix("/posted/")
            posted[name] = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            if name in (_DONE, _ERROR):
                finished.set()

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with _browser(f"http://127.0.0.1:{server.server_port}/"):
            in_time = finished.wait(seconds)
    finally:
        server.shutdown()
        server.server_close()
    if not in_time:
        raise RuntimeError(f"the page took more than {seconds} s; it has posted {sorted(posted)}")
    if _ERROR in posted:
        raise RuntimeError(f"the page: {posted[_ERROR].decode()}")
    return posted


def _example_file(path: str) -> bytes | None:
    """A file of the example, of which the npm packages may lie elsewhere."""
    name = path.removeprefix("/web/")
    root = EXAMPLE
    if name.startswith("node_modules/"):
        root, name = node_modules(), name.removeprefix("node_modules/")
    file = root / (name or "index.html")
    return file.read_bytes() if path.startswith("/web/") and file.is_file() else None


def _content_type(path: str) -> str:
    if path.endswith("/"):
        return "text/html"
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


@contextlib.contextmanager
def _browser(address: str) -> Iterator[None]:
    program = next(found for found in map(shutil.which, _BROWSERS) if found)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # A session of its own: its many processes end together.
        process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={profile}", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class InBrowser(NamedTuple):
    """What a file gives in a browser.

    Attributes:
        outputs: of the file as it is, (n, classes).
        outputs_of_copy: of the copy.
        codes: every tensor of codes, by name.
    """

    outputs: np.ndarray
    outputs_of_copy: np.ndarray
    codes: dict[str, np.ndarray]


def in_browser(content: bytes, graph: Graph, images: np.ndarray, build: str) -> InBrowser:
    """Runs a file on images in LiteRT.js, one by one.

    Args:
        content: the file, with one output of float32.
        graph: what `read_graph` reads from it.
        images: uint8, (n, rows, columns, channels).
        build: a name of `BUILDS`.
    """
    names = graph.integer_tensors
    files = {
        "original": content,
        "copy": with_every_code(content, names),
        "images": images.tobytes(),
    }
    posted = run_page(_CODES_PAGE.replace("BUILD", BUILDS[build]), files)
    if len(json.loads(posted["copy-names"])) != 1 + len(names):
        raise RuntimeError(
            f"LiteRT.js: received outputs {posted['copy-names']!r}, expected {names}"
        )

    def values(file: str, place: int, kind: type) -> np.ndarray:
        rows = [np.frombuffer(posted[f"{file}-{i}-{place}"], kind) for i in range(len(images))]
        return np.stack(rows)

    shapes = {name: (len(images), *graph.tensors[name].shape) for name in names}
    codes = {
        name: values("copy", 1 + place, np.int32).reshape(shapes[name])
        for place, name in enumerate(names)
    }
    return InBrowser(values("original", 0, np.float32), values("copy", 0, np.float32), codes)
