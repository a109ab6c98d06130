import numpy as np
import pytest

from sat_tf.commands import main
from tests.training.small import small_float_model, small_images, small_quantized_model


@pytest.fixture
def sat(capsys):
    """Runs words of `sat-tf`; returns what it says, in one line and without borders of tables."""

    def run(words, *more, status=0):
        capsys.readouterr()
        found = main.main([*words.split(), *map(str, more)])
        captured = capsys.readouterr()
        said = " ".join((captured.out + captured.err).replace("│", " ").split())
        run.status = found
        assert found in (status if isinstance(status, tuple) else (status,)), said
        return said

    return run


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder with a small model, float and quantized, and images for it."""
    folder = tmp_path_factory.mktemp("models")
    small_float_model().save(folder / "float.keras")
    small_float_model().save(folder / "float.h5")
    small_quantized_model().save(folder / "quantized.keras")
    np.save(folder / "images.npy", small_images().train_images)
    return folder
