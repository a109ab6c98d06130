"""The example for browsers: its pixels, its page, and the codes of the runtime it loads.

It needs Chromium and the npm packages: `npm install` in examples/web, or a folder of packages that
the environment variable SAT_TF_NODE_MODULES names. Nothing is downloaded here.
"""

import io
import json
import pathlib
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image, ImageOps

import sat_tf
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.graph_file import read_graph
from tests.export.zoo import images_for, quantized
from tests.training.data.photographs import encoded

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))
import browser
from every_code import differing

_MISSING = browser.missing()
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))]

LABELS = ["zero", "one", "two", "drei & vier <5>"]
# A side of what the resized picture covers, over that of the input; whether pictures are turned.
PREPROCESSING = {
    "resize_ratio": 256 / 224,
    "exif_orientation": True,
    "crop": "centre",
    "interpolation": "bilinear",
    "antialias": True,
    "range": [0, 255],
}

_MODULES = """<!doctype html>
<script type="importmap">{"imports": {
  "@litertjs/core": "/web/node_modules/@litertjs/core/dist/index.js",
  "@litertjs/wasm-utils": "/web/node_modules/@litertjs/wasm-utils/dist/index.js"}}</script>
<script type="module">
const post = (name, body) => fetch(`/posted/${name}`, {method: 'POST', body});
const take = async (name) => await (await fetch(`/files/${name}`)).blob();
const bytes = async (name) => new Uint8Array(await (await take(name)).arrayBuffer());
try { BODY; await post('done', ''); }
catch (error) { await post('error', `${error} ${error.stack ?? ''}`); }
</script>
"""


def in_modules(body, files):
    return browser.run_page(_MODULES.replace("BODY", body), files, seconds=120)


def picture(rows, columns):
    """The pixels of a PNG of noise."""
    return np.random.default_rng(0).integers(0, 256, (rows, columns, 3)).astype(np.uint8)


def as_pillow_has_it(content, shape, ratio, turns=True):
    """The input for a picture, from Pillow's own functions."""
    opened = Image.open(io.BytesIO(content))
    upright = ImageOps.exif_transpose(opened) if turns else opened
    image = upright.convert("RGB" if shape[2] == 3 else "L")
    scale = max(round(shape[0] * ratio) / image.height, round(shape[1] * ratio) / image.width)
    height, width = (int(side * scale + 1e-3) for side in (image.height, image.width))
    top, left = round((height - shape[0]) / 2), round((width - shape[1]) / 2)
    down, across = image.height / height, image.width / width
    box = (left * across, top * down, (left + shape[1]) * across, (top + shape[0]) * down)
    # In two calls the rows come first in every release; in one, Pillow 13 chooses by shapes.
    bilinear, size = Image.Resampling.BILINEAR, (shape[1], shape[0])
    narrow = image.resize((shape[1], image.height), bilinear, (box[0], 0, box[2], image.height))
    small = narrow.resize(size, bilinear, (0, box[1], shape[1], box[3]))
    at_once = np.asarray(image.resize(size, bilinear, box), int)
    assert np.abs(np.asarray(small) - at_once).max() <= 1
    return np.asarray(small).reshape(shape)


def written(model, path, preprocessing, **settings):
    """The file of a model, with labels and preprocessing."""
    sat_tf.export_tflite(model, path, labels=LABELS, **settings)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("preprocessing.json", json.dumps(preprocessing))
    return path.read_bytes()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A quantized model, and its file."""
    model, path = quantized("bottleneck"), tmp_path_factory.mktemp("web") / "model.tflite"
    return model, written(model, path, PREPROCESSING)


def test_pixels_are_those_of_pillow():
    turned = Image.Exif()
    turned[0x0112] = 6
    smooth = np.add.outer(np.arange(50) * 3, np.arange(70) * 2).astype(np.uint8)
    jpeg = encoded(np.stack([smooth, smooth.T.reshape(50, 70), 255 - smooth], -1))
    upright = encoded(np.repeat(smooth[..., None], 3, -1), exif=turned)
    cases = [
        (encoded(picture(40, 60), "PNG"), (32, 32, 3), 1, True),
        (encoded(picture(375, 500), "PNG"), (224, 224, 3), 256 / 224, True),
        (encoded(picture(31, 47), "PNG"), (24, 40, 3), 1.25, True),
        (encoded(picture(32, 32), "PNG"), (32, 32, 3), 1, True),
        (encoded(picture(90, 33), "PNG"), (28, 28, 1), 1, True),
        (encoded(picture(20, 20)[..., 0], "PNG"), (28, 28, 1), 1.1, True),
        (jpeg, (16, 16, 3), 1, True),
        (upright, (16, 24, 3), 1, True),
        (upright, (16, 24, 3), 1, False),
    ]
    files = {f"picture{index}": case[0] for index, case in enumerate(cases)}
    asked = [
        [shape, {"resize_ratio": ratio, "exif_orientation": turns}]
        for _, shape, ratio, turns in cases
    ]
    body = f"""
    const {{prepare}} = await import('/web/pixels.js');
    for (const [index, [shape, preprocessing]] of {json.dumps(asked)}.entries())
      await post(index, await prepare(await take(`picture${{index}}`), shape, preprocessing));
    """
    posted = in_modules(body, files)
    for index, (content, shape, ratio, turns) in enumerate(cases):
        found = np.frombuffer(posted[str(index)], np.uint8).reshape(shape)
        expected = as_pillow_has_it(content, shape, ratio, turns)
        np.testing.assert_array_equal(found, expected, err_msg=f"case {index}")


def test_a_model_gives_what_litert_gives_for_a_picture(exported):
    model, content = exported
    drawn = encoded(picture(40, 60), "PNG")
    body = """
    const {Model} = await import('/web/model.js');
    const model = await Model.open(await bytes('model'));
    const picture = await take('picture');
    await post('labels', JSON.stringify(model.labels));
    await post('classes', JSON.stringify(await model.classify(picture)));
    const {prepare} = await import('/web/pixels.js');
    await post('values', await model.run(await prepare(picture, model.shape, model.preprocessing)));
    model.delete();
    """
    posted = in_modules(body, {"model": content, "picture": drawn})
    shape = tuple(model.input_shape[1:])
    pixels = as_pillow_has_it(drawn, shape, PREPROCESSING["resize_ratio"])
    values = Runtime(content, keep_tensors=False).run(pixels[np.newaxis])[0]
    assert json.loads(posted["labels"]) == LABELS
    np.testing.assert_array_equal(np.frombuffer(posted["values"], np.float32), values)
    powers = np.exp(values.astype(np.float64) - values.max())
    order = np.argsort(-values, kind="stable")
    classes = json.loads(posted["classes"])
    assert [one["label"] for one in classes] == [LABELS[index] for index in order]
    probabilities = (powers / powers.sum())[order]
    np.testing.assert_allclose([one["probability"] for one in classes], probabilities, rtol=1e-6)


_OPENED = "await (await import('/web/model.js')).Model.open(await bytes('model'))"


@pytest.mark.parametrize(
    ("settings", "crop", "refusal"),
    [
        ({}, "corner", "received a file with crop: corner; expected centre"),
        ({"output_type": "int8"}, "centre", "no int8: export with output_type='uint8'"),
    ],
)
def test_a_file_of_another_preprocessing_or_of_int8_is_refused(
    settings, crop, refusal, exported, tmp_path
):
    content = written(
        exported[0], tmp_path / "model.tflite", {**PREPROCESSING, "crop": crop}, **settings
    )
    with pytest.raises(RuntimeError, match=refusal):
        in_modules(_OPENED, {"model": content})


def test_the_page_shows_classes_of_a_dropped_picture_at_390_pixels(exported):
    _, content = exported
    body = """
    const frame = document.createElement('iframe');
    frame.style.width = '390px';
    frame.src = '/web/?model=/files/model';
    document.documentElement.append(frame);
    const pause = () => new Promise((go) => setTimeout(go, 50));
    const until = async (told) => { while (!told()) await pause(); };
    const text = (id) => frame.contentDocument?.getElementById(id)?.textContent ?? '';
    await until(() => text('model').startsWith('model:'));
    await post('about', text('model'));
    const drop = (file) => {
      const data = new DataTransfer();
      data.items.add(file);
      const settings = {dataTransfer: data, bubbles: true, cancelable: true};
      frame.contentDocument.body.dispatchEvent(new DragEvent('drop', settings));
    };
    drop(new File([await take('picture')], 'picture.png', {type: 'image/png'}));
    await until(() => text('results'));
    const page = frame.contentDocument;
    const all = (kind) =>
      Array.from(page.querySelectorAll(`.class ${kind}`), (one) => one.textContent);
    await post('shown', JSON.stringify([all('.label'), all('.percent')]));
    await post('width', JSON.stringify([page.documentElement.scrollWidth, frame.clientWidth]));
    drop(new File(['no picture'], 'picture.txt'));
    await until(() => page.querySelector('.error'));
    const refused = text('results');
    await post('refused', refused);
    drop(new File(['no model'], 'other.tflite'));
    await until(() => text('results') !== refused);
    drop(new File([await take('model')], 'other.tflite'));
    await until(() => text('model').startsWith('other.tflite'));
    """
    posted = in_modules(body, {"model": content, "picture": encoded(picture(40, 60), "PNG")})
    labels, percents = json.loads(posted["shown"])
    assert posted["about"].decode().endswith("4 classes")
    assert sorted(labels) == sorted(LABELS)
    shares = [float(percent.removesuffix(" %")) for percent in percents]
    assert shares == sorted(shares, reverse=True)
    assert abs(sum(shares) - 100) < 0.5
    scrolled, width = json.loads(posted["width"])
    assert scrolled <= width
    assert posted["refused"]


@pytest.mark.parametrize("build", browser.BUILDS)
def test_every_code_in_webassembly_is_that_of_the_simulation(build, exported):
    model, content = exported
    images = images_for(model, 3)
    graph = read_graph(content, "model.tflite")
    found = browser.in_browser(content, graph, images, build)
    expected = simulate(graph, images)
    assert len(found.codes) == len(graph.integer_tensors) > 5
    assert differing(found.codes, expected) == 0
    values = Runtime(content, keep_tensors=False).run(images)
    np.testing.assert_array_equal(found.outputs, values)
    np.testing.assert_array_equal(found.outputs_of_copy, values)
