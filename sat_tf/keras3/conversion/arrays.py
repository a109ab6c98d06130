"""Data of the other backends of Keras 3, as tf_keras takes it."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras as keras3
import numpy as np

_BATCH_SIZE = 64


def as_numpy(value: Any) -> Any:
    """Tensors of any backend as NumPy's, also in tuples, lists and dictionaries, and in batches."""
    if isinstance(value, dict):
        return {key: as_numpy(inner) for key, inner in value.items()}
    if type(value) in (tuple, list):
        return type(value)(as_numpy(inner) for inner in value)
    top = type(value).__module__.split(".")[0]
    if isinstance(value, keras3.Variable):
        return keras3.ops.convert_to_numpy(value)
    if top in ("torch", "jax", "jaxlib") and hasattr(value, "shape"):
        return np.asarray(value.detach().cpu() if top == "torch" else value)
    if isinstance(value, keras3.utils.PyDataset):
        return _Batches(lambda: (value[index] for index in range(len(value))))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.utils.data.DataLoader):
        return _Batches(lambda: iter(value))
    if torch is not None and isinstance(value, torch.utils.data.Dataset):
        return _Batches(lambda: iter(torch.utils.data.DataLoader(value, batch_size=_BATCH_SIZE)))
    return value


class _Batches:
    """The batches of a data set of another library, with NumPy's arrays."""

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches():
            found = as_numpy(batch)
            yield tuple(found) if isinstance(found, list) else found
