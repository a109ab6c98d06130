import pytest

from tests.campaign.originals import prepare


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """The folder of good files, from which cases are made."""
    return prepare(tmp_path_factory.mktemp("originals") / "files")
