import pytest

from tests.export.conftest import small, small_file, small_images  # noqa: F401


@pytest.fixture(scope="package")
def few_images(small_images):  # noqa: F811
    return small_images[:3]
