"""The one function that loads saved models; safe by default."""

import contextlib
import graphlib
import json
import os
import pathlib
import shutil
import sys
import traceback
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sat_tf.files import expect_path, read_bytes, temporary_folder
from sat_tf.loading import trust
from sat_tf.loading.model_file import (
    ModelFile,
    OtherFileError,
    expect_usual_size,
    mappings_in,
    open_model_file,
    parts,
)
from sat_tf.messages import first_ones, kind_of, shown

if TYPE_CHECKING:
    import tf_keras as keras

# A model has more than its file: states of random layers, casts to wider types.
_LARGEST_RATIO = 8
_ALWAYS_BUILT_BYTES = 2**26
# Keras registers what `quantize_for_bits` makes by this name.
_SEVERAL_WIDTHS = "sat_tf>AdaptiveBits"
# tf_keras writes this instead of a layer's name in front of a constant.
_CONSTANT = "_CONSTANT_VALUE"
_MODELS = ("Functional", "Model", "Sequential")
_FUNCTIONS = ("TFOpLambda", "SlicingOpLambda")
_OURS = "sat_tf>"

# The name of a layer, and which of its calls.
_Call = tuple[Hashable, int]


def load_model(path: str | os.PathLike[str], *, safe_mode: bool = True) -> "keras.Model":
    """A model that tf_keras (Keras 2) has saved, not compiled.

    In safe mode nothing that came with the model is run: no Lambda layer, no class or function of
    a module that the file names, no function of TensorFlow that does more than compute on tensors,
    no graph of a SavedModel, which is rebuilt from its configuration instead. Classes that are
    registered with Keras by then are accepted.

    Args:
        path: a `.keras` or HDF5 file, whatever it is called, or the folder of a SavedModel.
        safe_mode: False loads anything that tf_keras does, and runs its code.

    Raises:
        UntrustedModelError: it would run code; names what, and the switch.
        OtherFileError: it is a file of another kind; says which, and the fix.
        ValueError: there is no such model, or it is damaged, in one line.
    """
    path = expect_path(path)
    try:
        if path.is_dir():
            return _from_folder(path, safe_mode)
        file = open_model_file(path)
        if file.is_keras3:
            raise ValueError(
                f"received a file that Keras {file.version} saved, expected one of tf_keras; "
                "convert it with sat_tf.from_keras3(path)"
            )
        _refuse_several_widths(file)
        with named_by_content(file) as name, _loading(file.weight_bytes):
            import tf_keras as keras

            if safe_mode:
                trust.check(file.config)
            check_order(file.config)
            with (
                contextlib.nullcontext() if safe_mode else trust.trusted_maker(),
                _code_of_this_python(file),
            ):
                found = keras.models.load_model(name, compile=False, safe_mode=safe_mode)
            # Keras gives back what it does not take for an object, such as one without its config.
            if not isinstance(found, keras.Model):
                raise ValueError(f"received a file of {kind_of(found)}, expected one of a model")
            return found
    except (trust.UntrustedModelError, OtherFileError) as error:
        raise type(error)(shown(f"{path}: {error}")) from error
    except ValueError as error:
        raise ValueError(shown(f"{path}: {error}")) from error


@contextlib.contextmanager
def named_by_content(file: ModelFile) -> Iterator[pathlib.Path]:
    """A path with the suffix of the file's format: both versions of Keras choose the loader by it.

    Otherwise a file could be checked as one format and loaded as another.
    """
    if file.path.suffix == file.suffix:
        yield file.path
        return
    with temporary_folder() as folder:
        name = pathlib.Path(folder, f"model{file.suffix}")
        try:
            name.symlink_to(file.path.resolve())
        except OSError:  # a system without links
            shutil.copyfile(file.path, name)
        yield name


@contextlib.contextmanager
def _code_of_this_python(file: ModelFile) -> Iterator[None]:
    """A scope in which errors of code that another Python has compiled say so, with the fix.

    Keras keeps the function of a Lambda layer as the code of the Python that saved it, which no
    other reads.
    """
    try:
        yield
    except Exception as error:  # `marshal` raises four types, and what it has misread, any
        calls = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        if "func_load" not in calls and not isinstance(error, SystemError):
            raise
        lambdas = [part.name for part in parts(file.config) if part.class_name == "Lambda"]
        named = first_ones(lambdas) or "a function"
        this = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ValueError(
            f"received Python code in the file ({named}) that another version of Python than this "
            f"one, {this}, has compiled, and only that version reads ({error}), expected layers of "
            "Keras; build the model once more from its own code, with these layers as they were, "
            f"and load the weights: model = build_model(); model.load_weights({str(file.path)!r}); "
            "model.save('model.keras')"
        ) from error


def _refuse_several_widths(file: ModelFile) -> None:
    if file.config.get("registered_name") != _SEVERAL_WIDTHS:
        return
    config = file.config.get("config")
    members = config.get("members") if isinstance(config, Mapping) else None
    widths = list(members) if isinstance(members, Mapping) and members else ["bits"]
    raise OtherFileError(
        f"received the model of several bit widths ({', '.join(widths)}) that quantize_for_bits "
        "makes, expected that of one; save it, in Python: import sat_tf; "
        f"tf_keras.models.load_model({str(file.path)!r}).at_bits({widths[-1]}).save('one.keras')"
    )


@contextlib.contextmanager
def bounded_weights(weight_bytes: int | None) -> Iterator[None]:
    """A scope in which TensorFlow creates no more variables than a file has weights for."""
    if weight_bytes is None:
        yield
        return
    most = max(_LARGEST_RATIO * weight_bytes, _ALWAYS_BUILT_BYTES)
    problem = f"in a file that holds {weight_bytes:,}, expected them all in it"
    with bounded_variables(most, problem):
        yield


@contextlib.contextmanager
def bounded_variables(most: int, problem: str) -> Iterator[None]:
    """A scope in which TensorFlow creates variables of `most` bytes in all.

    The error goes on with the problem behind the bytes that it received.
    """
    import tensorflow as tf

    built = 0

    def creator(make: Any, **options: Any) -> Any:
        nonlocal built
        built += _variable_bytes(options)
        if built > most:
            raise ValueError(f"received a model of more than {most:,} bytes of weights {problem}")
        return make(**options)

    with tf.variable_creator_scope(creator):
        yield


def _variable_bytes(options: Mapping[str, Any]) -> int:
    """Bytes of a variable with these options; 0 where they are unknown."""
    import tensorflow as tf

    value, dtype = options.get("initial_value"), options.get("dtype")
    shape = tf.TensorShape(options.get("shape"))
    if not shape.is_fully_defined() and callable(value):
        # Keras 3 passes the initializer and no shape; tracing it creates no value.
        try:
            traced = tf.function(value, autograph=False).get_concrete_function()
        except Exception:  # functions of users may raise anything; Keras reports it
            return 0
        shape = tf.TensorShape(traced.structured_outputs.shape)
        dtype = traced.structured_outputs.dtype
    if not shape.is_fully_defined() or dtype is None:
        return 0
    return int(shape.num_elements()) * tf.as_dtype(dtype).size


@contextlib.contextmanager
def _loading(weight_bytes: int | None) -> Iterator[None]:
    """The scopes in which tf_keras loads; its errors on a damaged model become ValueErrors."""
    import tensorflow_model_optimization as tfmot

    try:
        # A model that TFMOT has pruned, clustered or quantized is then refused as such, and not for
        # an unknown class.
        with (
            tfmot.sparsity.keras.prune_scope(),
            tfmot.clustering.keras.cluster_scope(),
            tfmot.quantization.keras.quantize_scope(),
            bounded_weights(weight_bytes),
        ):
            yield
    except trust.UntrustedModelError:
        raise
    except RecursionError as error:
        raise ValueError("received a model that is nested too deeply") from error
    except Exception as error:  # tf_keras raises many types on damaged files
        lines = str(error).strip().splitlines()
        raise ValueError(lines[0].rstrip(".") if lines else type(error).__name__) from error


def check_order(config: Any) -> None:
    """Raises ValueError for a model, or one inside it, whose layers cannot all be called.

    tf_keras calls the layers that it can call, again and again until it has called all of them:
    where layers wait for each other, or for a call that never comes, it loops forever. Other
    problems of a configuration are left to Keras.

    >>> layer = {"class_name": "ReLU", "name": "relu", "inbound_nodes": [[["relu", 0, 0, {}]]]}
    >>> check_order({"class_name": "Functional", "config": {"layers": [layer]}})
    Traceback (most recent call last):
    ValueError: relu: received a layer that reads what comes after it, expected layers that can be \
called one after the other
    """
    known = trust.keras_classes()
    for value in mappings_in(config):
        if isinstance(value.get("layers"), list):
            # Keras refuses what is not a layer of a Functional model.
            called = [
                layer
                for layer in value["layers"]
                if isinstance(layer, dict)
                and isinstance(layer.get("inbound_nodes"), list)
                and "name" in layer
                and isinstance(layer["name"], Hashable)
            ]
            _check_layers(called, known)


def _check_layers(layers: list[dict[str, Any]], known: frozenset[str]) -> None:
    of_object: dict[Hashable, Hashable] = {}
    nodes: dict[Hashable, list[Any]] = {}
    for layer in layers:
        name, shared = layer["name"], layer.get("shared_object_id")
        is_shared = shared is not None and isinstance(shared, Hashable)
        other = of_object.setdefault(shared, name) if is_shared else name
        if other != name:  # one object has one list of calls, in no defined order
            raise ValueError(
                f"{name}: received a layer that is the same object as {other}, expected one name "
                "for it"
            )
        # A repeated name adds calls to the first layer of that name.
        nodes.setdefault(name, []).extend(layer["inbound_nodes"])
    read = {
        (name, number): list(_tensors(node))
        for name, of_layer in nodes.items()
        for number, node in enumerate(of_layer)
    }
    # Layers whose calls are counted from 1, as far as the calls that are read show it.
    past = {
        name
        for tensors in read.values()
        for name, index in tensors
        if name in nodes and index == len(nodes[name])
    }
    classes = {layer["name"]: layer.get("class_name") for layer in reversed(layers)}
    places = {}
    for layer in reversed(layers):
        place = _first_call(layer, known)
        places[layer["name"]] = int(layer["name"] in past) if place is None else place
    sources: dict[_Call, list[_Call]] = {}
    for (name, number), tensors in read.items():
        if classes[name] in _FUNCTIONS and not tensors:  # tf_keras would call it at once
            raise ValueError(f"{name}: received a function of no tensor, expected one of some")
        # tf_keras makes the calls of a layer in the order of the file.
        sources[name, number] = [(name, number - 1)] if number else []
        for source, index in tensors:
            # Never called, or refused by Keras.
            if source not in places or classes[source] == "InputLayer":
                continue
            place = places[source]
            if not isinstance(index, int) or not 0 <= index - place < len(nodes[source]):
                raise ValueError(
                    f"{name}: received a layer that reads what call {index!r} of {source} makes, "
                    f"expected one of the {len(nodes[source])} calls in the file"
                )
            sources[name, number].append((source, index - place))
    try:
        graphlib.TopologicalSorter(sources).prepare()
    except graphlib.CycleError as error:
        raise ValueError(
            f"{error.args[1][0][0]}: received a layer that reads what comes after it, expected "
            "layers that can be called one after the other"
        ) from error


def _tensors(node: Any) -> Iterator[tuple[str, Any]]:
    """The inputs of a call: the layer that each comes from, and the number of that layer's call."""
    waiting = [node]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            if len(value) in (3, 4) and isinstance(value[0], str):
                if value[0] != _CONSTANT:
                    yield value[0], value[1]
                waiting.extend(value[3:])
            else:
                waiting.extend(value)


def _first_call(layer: dict[str, Any], known: frozenset[str]) -> int | None:
    """The number of a layer's first call: 1 for models, which are called while they are built.

    None where that depends on more than the file says.
    """
    config, kind = layer.get("config"), layer.get("class_name")
    if kind in ("Functional", "Model") or (isinstance(config, dict) and "input_layers" in config):
        return 1
    if kind != "Sequential":
        return None if _may_be_a_model(layer, known) else 0
    inside = config.get("layers") if isinstance(config, dict) else config
    first = inside[0] if isinstance(inside, list) and inside else None
    if not isinstance(first, dict) or not isinstance(first.get("config"), dict):
        return None
    if first.get("class_name") == "InputLayer" or first["config"].get("batch_input_shape"):
        return 1
    is_told = isinstance(config, dict) and config.get("build_input_shape")
    return None if is_told or _may_be_a_model(first, known) else 0


def _may_be_a_model(layer: dict[str, Any], known: frozenset[str]) -> bool:
    kind, registered_name = layer.get("class_name"), layer.get("registered_name")
    if str(kind).startswith(_OURS) or str(registered_name).startswith(_OURS):
        return False
    return kind in _MODELS or str(kind) not in known or registered_name not in (None, kind)


# -- SavedModels -----------------------------------------------------------------------------------

# A SavedModel is a program: TensorFlow runs some of its functions while loading it, and they may
# read and write files. The configuration and the variables beside it are data, of which the model
# is built again: nothing of its graph is run.
_GRAPH, _METADATA = "saved_model.pb", "keras_metadata.pb"
_VARIABLES = pathlib.Path("variables", "variables")


def is_saved_model(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a SavedModel."""
    return pathlib.Path(path, _GRAPH).is_file()


def _from_folder(path: pathlib.Path, safe_mode: bool) -> "keras.Model":
    if not is_saved_model(path):
        raise ValueError("received a folder without a saved_model.pb, expected a SavedModel")
    if not (path / _METADATA).is_file():  # however much it is trusted
        raise OtherFileError(
            f"received a SavedModel without {_METADATA}: a program without layers, as Keras 3's "
            "model.export() and tf.saved_model.save() write; expected a model with its layers; "
            "save that with model.save('model.keras')"
        )
    if not safe_mode:
        import tf_keras as keras

        with _loading(None), trust.trusted_maker():
            return keras.models.load_model(path, compile=False)
    config = _saved_model_config(path)
    with _loading(_variables_on_disk(path)):
        trust.check(config)
        check_order(config)
        return _rebuilt(path, config)


def _saved_model_config(path: pathlib.Path) -> dict[str, Any]:
    """The configuration of the model in a SavedModel with layers."""
    from tf_keras.protobuf import saved_metadata_pb2

    metadata = saved_metadata_pb2.SavedMetadata()
    try:
        metadata.ParseFromString(read_bytes(path / _METADATA))
        roots = [node for node in metadata.nodes if node.node_id == 0]
        values = json.loads(roots[0].metadata) if roots else {}
        config = {key: values[key] for key in ("class_name", "config")} if values else None
    except Exception as error:  # of protobuf, of JSON, and of missing entries
        raise ValueError(
            f"received a SavedModel whose {_METADATA} is damaged ({type(error).__name__})"
        ) from error
    if config is None or not isinstance(config["config"], dict) or "layers" not in config["config"]:
        raise trust.UntrustedModelError(
            "received a SavedModel without the configuration of a Functional or Sequential model, "
            "which can only be run as a program, expected one that tf_keras wrote of such a model; "
            f"save it as .keras, or {trust.SWITCH}."
        )
    expect_usual_size(config)
    return config


def _rebuilt(path: pathlib.Path, config: dict[str, Any]) -> "keras.Model":
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


def _variables_on_disk(path: pathlib.Path) -> int:
    """Bytes of the variables of a SavedModel on disk, where they are not compressed."""
    found = sorted((path / _VARIABLES).parent.glob(f"{_VARIABLES.name}.*"))
    if others := [file.name for file in found if not file.is_file()]:
        raise ValueError(
            f"received a SavedModel whose variables are no files ({first_ones(others)}), expected "
            "those that TensorFlow wrote"
        )
    return sum(file.stat().st_size for file in found if ".data-" in file.name)
