import pytest

from tests.arm.system import ArmSystem, find_system
from tests.export.conftest import small, small_file, small_images  # noqa: F401


@pytest.fixture(scope="package")
def arm_system() -> ArmSystem:
    try:
        return find_system()
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def few_images(small_images):  # noqa: F811
    return small_images[:3]
