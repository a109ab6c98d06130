"""Data of the other backends of Keras 3, as tf_keras takes it."""

from collections.abc import Callable, Iterator
from typing import Any

import keras as keras3


def as_numpy(value: Any) -> Any:
    """Tensors of any backend as NumPy's, also in tuples, lists and dictionaries, and in batches."""
    if isinstance(value, dict):
        return {key: as_numpy(inner) for key, inner in value.items()}
    if type(value) in (tuple, list):
        return type(value)(as_numpy(inner) for inner in value)
    top = type(value).__module__.split(".")[0]
    if top in ("torch", "jax", "jaxlib") and hasattr(value, "shape"):
        return keras3.ops.convert_to_numpy(value)
    if isinstance(value, keras3.utils.PyDataset):
        return _Batches(lambda: (value[index] for index in range(len(value))))
    if type(value).__module__.startswith("torch.utils.data"):
        return _Batches(lambda: iter(value))
    return value


class _Batches:
    """The batches of a data set of another library, with NumPy's arrays."""

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches():
            found = as_numpy(batch)
            yield tuple(found) if isinstance(found, list) else found
