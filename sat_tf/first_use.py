"""Modules that take seconds to load, loaded when something of them is first used."""

import importlib
from typing import Any


class OnFirstUse:
    """A module that is imported when an attribute of it is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
