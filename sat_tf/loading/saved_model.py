"""SavedModels of tf_keras, rebuilt from their configuration: nothing of their graph is run.

A SavedModel is a program: TensorFlow runs some of its functions while loading it, and they may
read and write files. The configuration and the variables beside it are data.
"""

import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

from sat_tf.files import read_bytes
from sat_tf.loading.model_file import OtherFileError, expect_usual_size
from sat_tf.loading.trust import SWITCH, UntrustedModelError
from sat_tf.messages import first_ones

if TYPE_CHECKING:
    import tf_keras as keras

_GRAPH, _METADATA = "saved_model.pb", "keras_metadata.pb"
_VARIABLES = pathlib.Path("variables", "variables")


def is_saved_model(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a SavedModel."""
    return pathlib.Path(path, _GRAPH).is_file()


def expect_layers(path: pathlib.Path) -> None:
    """Raises OtherFileError for a SavedModel that has no layers, however much it is trusted.

    Keras 3's `export` and `tf.saved_model.save` write programs alone.
    """
    if not (path / _METADATA).is_file():
        raise OtherFileError(
            f"received a SavedModel without {_METADATA}: a program without layers, as Keras 3's "
            "model.export() and tf.saved_model.save() write; expected a model with its layers; "
            "save that with model.save('model.keras')"
        )


def saved_model_config(path: pathlib.Path) -> dict[str, Any]:
    """The configuration of the model in a SavedModel with layers, see `expect_layers`.

    Raises:
        UntrustedModelError: it has no configuration, such as that of a subclassed model.
        ValueError: it is damaged.
    """
    from tf_keras.protobuf import saved_metadata_pb2

    metadata = saved_metadata_pb2.SavedMetadata()
    try:
        metadata.ParseFromString(read_bytes(path / _METADATA))
        roots = [node for node in metadata.nodes if node.node_id == 0]
        values = json.loads(roots[0].metadata) if roots else {}
        found = {key: values[key] for key in ("class_name", "config")} if values else None
    except Exception as error:  # of protobuf, of JSON, and of missing entries
        raise ValueError(
            f"received a SavedModel whose {_METADATA} is damaged ({type(error).__name__})"
        ) from error
    if found is None or not isinstance(found["config"], dict) or "layers" not in found["config"]:
        raise UntrustedModelError(
            "received a SavedModel without the configuration of a Functional or Sequential model, "
            "which can only be run as a program, expected one that tf_keras wrote of such a model; "
            f"save it as .keras, or {SWITCH}."
        )
    expect_usual_size(found)
    return found


def rebuilt(path: pathlib.Path, config: dict[str, Any]) -> "keras.Model":
    """The model of a SavedModel's configuration, with the SavedModel's variables."""
    import tensorflow as tf
    import tf_keras as keras

    # It is passed as text: SavedModels write tuples in a way of their own, which this reads.
    model = keras.models.model_from_json(json.dumps(config))
    # Keras would take other files of that name as well, and in other formats.
    if not (path / _VARIABLES).with_suffix(".index").is_file() or (path / _VARIABLES).exists():
        raise ValueError(
            f"received a SavedModel without {_VARIABLES}.index, expected its variables"
        )
    try:
        # Partial: the optimizer's are left.
        loaded = model.load_weights(str(path / _VARIABLES)).expect_partial()
        loaded.assert_existing_objects_matched()
    except (AssertionError, tf.errors.OpError) as error:
        raise ValueError(
            f"received a SavedModel whose variables are not those of its model ({error})"
        ) from error
    return model


def variable_bytes(path: pathlib.Path) -> int:
    """Bytes of the variables of a SavedModel on disk, where they are not compressed."""
    found = sorted((path / _VARIABLES).parent.glob(f"{_VARIABLES.name}.*"))
    if others := [file.name for file in found if not file.is_file()]:
        raise ValueError(
            f"received a SavedModel whose variables are no files ({first_ones(others)}), expected "
            "those that TensorFlow wrote"
        )
    return sum(file.stat().st_size for file in found if ".data-" in file.name)
