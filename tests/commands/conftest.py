import numpy as np
import pytest

from tests.training.small import small_float_model, small_images, small_quantized_model


@pytest.fixture
def said(capsys):
    """Returns all that commands have printed since it was last asked, in one line."""

    def words():
        captured = capsys.readouterr()
        return " ".join((captured.out + captured.err).split())

    return words


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder with a small model, float and quantized, and images for it."""
    folder = tmp_path_factory.mktemp("models")
    small_float_model().save(folder / "float.keras")
    small_float_model().save(folder / "float.h5")
    small_quantized_model().save(folder / "quantized.keras")
    np.save(folder / "images.npy", small_images().train_images)
    return folder
