"""Installs sat-tf; everything a tool reads besides this lives in pyproject.toml."""

import pathlib
import re

import setuptools

_HERE = pathlib.Path(__file__).parent
_SOURCE = (_HERE / "sat_tf" / "version.py").read_text(encoding="utf-8")
_VERSION = re.search(r'__version__ = "(.*)"', _SOURCE)[1]

# What builds the documentation. Ruff wraps the signatures on the API pages.
_DOCS = [
    "mkdocs>=1.6,<2",
    "mkdocs-material>=9.6,<10",
    "mkdocstrings[python]>=1.0,<2",
    "ruff>=0.6",
]

_ETHOS = ["ethos-u-vela>=5.2,<6"]

setuptools.setup(
    name="sat-tf",
    version=_VERSION,
    description="Low-bit quantization-aware training for Keras, with a certified TFLite export.",
    long_description=(_HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=setuptools.find_packages(include=["sat_tf", "sat_tf.*"]),
    package_data={"sat_tf": ["py.typed", "training/configs/**/*.yaml", "**/*.html", "**/*.css"]},
    install_requires=[
        "tensorflow>=2.16,<2.22",
        "tf_keras>=2.16,<2.22",  # which asks for TensorFlow of its own minor version
        # Earlier ones build no layer there after `set_random_seed`: they draw randint(1, 1e9).
        'tf_keras>=2.19; python_version >= "3.12"',
        "keras>=3.2,<4",  # TensorFlow's own, from the first with keras.tree
        "tensorflow-datasets>=4.9,<5",
        "importlib_resources",  # which TensorFlow Datasets needs for builders of one's own
        "tensorflow-model-optimization>=0.8,<0.9",
        "ai-edge-litert>=2.1.6,<2.4",
        "numpy>=1.26,<3",
        "pandas>=2.2,<4",
        "absl-py>=1.4,<3",
        "filelock>=3.20,<5",
        "flatbuffers>=24.3,<26",
        "h5py>=3.10,<4",
        "jinja2>=3.1,<4",
        "markupsafe>=2.1,<4",
        "matplotlib>=3.8,<4",
        "pillow>=10,<14",
        "pydantic>=2.7,<3",
        "pyyaml>=6,<7",
        "rich>=13,<16",
        "scikit-learn>=1.4,<2",
        "scipy>=1.11,<2",
        "tqdm>=4.60,<5",
        "wrapt>=1.14,<3",
    ],
    extras_require={
        "gpu": ["tensorflow[and-cuda]>=2.16,<2.22"],
        # Backends of Keras 3, beside TensorFlow.
        "jax": ["jax>=0.4.30"],
        "torch": ["torch>=2.4"],
        # Only pre-releases of it exist.
        "micro": ["tflite-micro>=0.dev20260101"],
        # Arm's compiler for Ethos-U.
        "ethos": _ETHOS,
        "dist": ["build>=1.2", "nox>=2024.4", "twine>=6"],
        "docs": _DOCS,
        "test": [
            *_DOCS,
            *_ETHOS,
            "hypothesis>=6.100",
            "ipykernel>=6.29",
            "mypy>=1.11",
            "nbclient>=0.10",
            "pytest>=8",
            "pytest-xdist>=3.5",
            "tensorboard>=2.16,<3",
            "types-PyYAML",
        ],
    },
    entry_points={"console_scripts": ["sat-tf = sat_tf.__main__:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
