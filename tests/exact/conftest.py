"""The networks of the tests of the export, which the proof is tested on as well."""

from tests.export.conftest import *  # noqa: F403 -- pytest finds fixtures by their names
