"""The networks of the tests of the export, which the proof is tested on as well."""

from tests.export.conftest import (  # noqa: F401 -- pytest finds fixtures by their names
    float_model,
    images,
    path,
    quantized,
    small,
    small_file,
    small_images,
)
