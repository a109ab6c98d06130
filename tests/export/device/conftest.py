import pytest

from sat_tf.export.device.kit import write_kit
from tests.export.device.kits import certificate_in, checked_here, unpacked

NUM_IMAGES = 3


@pytest.fixture(scope="package")
def few_images(small_images):
    return small_images[:NUM_IMAGES]


@pytest.fixture(scope="package")
def kit(small_file, few_images, tmp_path_factory):
    """A kit without codes."""
    return write_kit(small_file, few_images, tmp_path_factory.mktemp("kit") / "kit.zip")


@pytest.fixture(scope="package")
def kit_with_codes(small_file, few_images, tmp_path_factory):
    path = tmp_path_factory.mktemp("kit_codes") / "kit.zip"
    return write_kit(small_file, few_images, path, codes=True)


@pytest.fixture
def folder(kit_with_codes, tmp_path):
    """The kit with codes, unpacked, for a test to change."""
    return unpacked(kit_with_codes.path, tmp_path / "kit")


@pytest.fixture(scope="package")
def certificate_path(kit, tmp_path_factory):
    """The certificate that the kit wrote on this machine."""
    working = tmp_path_factory.mktemp("device")
    assert checked_here(kit.path, working).returncode == 0
    return certificate_in(working)
