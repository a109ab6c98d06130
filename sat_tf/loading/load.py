"""The one function that loads saved models; safe by default."""

import contextlib
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sat_tf.files import expect_path, read_bytes, temporary_folder
from sat_tf.loading import trust
from sat_tf.loading.model_file import ModelFile, OtherFileError, expect_usual_size, open_model_file
from sat_tf.messages import first_ones, kind_of, shown

if TYPE_CHECKING:
    import tf_keras as keras

# A model has more than its file: states of random layers, casts to wider types.
_LARGEST_RATIO = 8
_ALWAYS_BUILT_BYTES = 2**26
# Keras registers the models of `quantize_for_bits` by this name.
_SEVERAL_WIDTHS = "sat_tf>AdaptiveBits"
# tf_keras writes this instead of a layer's name in front of a constant.
_CONSTANT = "_CONSTANT_VALUE"
_FUNCTIONS = ("TFOpLambda", "SlicingOpLambda")


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
        if file.config.get("registered_name") == _SEVERAL_WIDTHS:
            raise OtherFileError(
                "received a model of several bit widths, made by quantize_for_bits, expected one "
                "of its widths; save that, in Python: import sat_tf; "
                f"tf_keras.models.load_model({str(path)!r}).at_bits(bits).save('one.keras')"
            )
        with named_by_content(file) as name, _loading(file.weight_bytes):
            import tf_keras as keras

            if safe_mode:
                trust.check(file.config, keras)
            with contextlib.nullcontext() if safe_mode else trust.trusted_maker():
                model = keras.models.load_model(name, compile=False, safe_mode=safe_mode)
            # Keras gives back what it does not take for an object, such as one without its config.
            if not isinstance(model, keras.Model):
                raise ValueError(f"received a file of {kind_of(model)}, expected one of a model")
            return model
    except (trust.UntrustedModelError, OtherFileError) as error:
        raise type(error)(shown(f"{path}: {error}")) from error
    except ValueError as error:
        raise ValueError(shown(f"{path}: {error}")) from error


@contextlib.contextmanager
def named_by_content(file: ModelFile) -> Iterator[pathlib.Path]:
    """Yields a path whose suffix fits the contents; Keras 2 and 3 choose their loader by it."""
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


def bounded_weights(weight_bytes: int) -> contextlib.AbstractContextManager[None]:
    """A scope in which TensorFlow creates no more variables than a file has weights for."""
    limit = max(_LARGEST_RATIO * weight_bytes, _ALWAYS_BUILT_BYTES)
    return bounded_variables(
        limit, f"in a file that holds {weight_bytes:,}, expected them all in it"
    )


@contextlib.contextmanager
def bounded_variables(most: int, problem: str) -> Iterator[None]:
    """A scope in which TensorFlow creates variables of `most` bytes; `problem` ends the error."""
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
def _loading(weight_bytes: int) -> Iterator[None]:
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
            _bounded_rounds(),
        ):
            yield
    except trust.UntrustedModelError:
        raise
    except RecursionError as error:
        raise ValueError("received a model that is nested too deeply") from error
    except Exception as error:  # tf_keras raises many types on damaged files
        lines = str(error).strip().splitlines()
        raise ValueError(lines[0].rstrip(".") if lines else type(error).__name__) from error


@contextlib.contextmanager
def _bounded_rounds() -> Iterator[None]:
    """A scope in which tf_keras refuses a model whose layers cannot all be called.

    It calls the layers that it can call, round by round, until it has called all of them, which
    never ends where layers wait for each other, or for a call that never comes.
    """
    from tf_keras.src.engine import functional

    rebuild = functional.reconstruct_from_config

    def bounded(config: Any, custom_objects: Any = None, created_layers: Any = None) -> Any:
        names: dict[Any, str] = {}
        for layer in config["layers"] if created_layers is None else ():
            shared = layer.get("shared_object_id")
            name = layer["name"] if shared is None else names.setdefault(shared, layer["name"])
            if name != layer["name"]:  # tf_keras would call it in place of this one
                raise ValueError(
                    f"{layer['name']}: received a layer that is the same object as {name}, "
                    "expected one name for it"
                )
            is_function = layer["class_name"] in _FUNCTIONS
            if is_function and not all(map(_reads_tensors, layer["inbound_nodes"])):
                # tf_keras would call it at once, and a few words could make a giant.
                raise ValueError(
                    f"{layer['name']}: received a function of no tensor, expected one of some"
                )
        layers = created_layers or _MadeLayers()
        rounds = {**config, "layers": _Rounds(config["layers"], layers)}
        return rebuild(rounds, custom_objects, layers)

    functional.reconstruct_from_config = bounded
    try:
        yield
    finally:
        functional.reconstruct_from_config = rebuild


class _MadeLayers(dict[str, Any]):
    """Layers by name; true though it is empty, as tf_keras would not fill it otherwise."""

    def __bool__(self) -> bool:
        return True


class _Rounds(list[Any]):
    """The layers in a file, which tf_keras goes through in rounds that each make a call or more."""

    def __init__(self, layers: list[Any], by_name: dict[str, Any]) -> None:
        super().__init__(layers)
        self._made, self._calls = by_name, list[int]()

    def __iter__(self) -> Iterator[Any]:
        self._calls.append(sum(len(layer._inbound_nodes) for layer in self._made.values()))
        # First it makes the layers.
        if len(self._calls) > 2 and self._calls[-1] == self._calls[-2]:
            raise ValueError(
                "received layers that read one another in a circle, expected layers that can be "
                "called one after the other"
            )
        return super().__iter__()


def _reads_tensors(node: Any) -> bool:
    """Whether a call reads what a layer has made."""
    if isinstance(node, dict):
        return any(map(_reads_tensors, node.values()))
    if not isinstance(node, list):
        return False
    if len(node) in (3, 4) and isinstance(node[0], str):
        return node[0] != _CONSTANT or any(map(_reads_tensors, node[3:]))
    return any(map(_reads_tensors, node))


# -- SavedModels -----------------------------------------------------------------------------------

# A SavedModel is a program: TensorFlow runs some of its functions while loading it, and they may
# read and write files. The configuration and the variables beside it are data, of which the model
# is built again: nothing of its graph is run.
_GRAPH, _METADATA = "saved_model.pb", "keras_metadata.pb"


def is_saved_model(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a SavedModel."""
    return os.path.isfile(os.path.join(path, _GRAPH))  # False for names that no file can have


def _from_folder(path: pathlib.Path, safe_mode: bool) -> "keras.Model":
    if not is_saved_model(path):
        raise ValueError("received a folder without a saved_model.pb, expected a SavedModel")
    if not (path / _METADATA).is_file():  # however much it is trusted
        raise OtherFileError(
            f"received a SavedModel without {_METADATA}: a program without layers, as Keras 3's "
            "model.export() and tf.saved_model.save() write; expected a model with its layers; "
            "save that with model.save('model.keras')"
        )
    import tensorflow as tf
    import tf_keras as keras
    from tf_keras.protobuf import saved_metadata_pb2

    if not safe_mode:
        with _loading(sys.maxsize), trust.trusted_maker():
            return keras.models.load_model(path, compile=False)
    metadata = saved_metadata_pb2.SavedMetadata()
    try:
        metadata.ParseFromString(read_bytes(path / _METADATA))
        roots = [node for node in metadata.nodes if node.node_id == 0]
        values = json.loads(roots[0].metadata) if roots else {}
        config = {key: values[key] for key in ("class_name", "config")} if values else {}
    except Exception as error:  # of protobuf, of JSON, and of missing entries
        raise ValueError(
            f"received a SavedModel whose {_METADATA} is damaged ({type(error).__name__})"
        ) from error
    settings = config.get("config")
    if not isinstance(settings, dict) or "layers" not in settings:
        raise trust.UntrustedModelError(
            "received a SavedModel without the configuration of a Functional or Sequential model, "
            "which can only be run as a program, expected one that tf_keras wrote of such a model; "
            f"save it as .keras, or {trust.SWITCH}."
        )
    expect_usual_size(config)
    variables = path / "variables" / "variables"
    files = [variables.with_suffix(".index"), *variables.parent.glob("variables.*")]
    # Keras would take other files of that name as well, and in other formats.
    missing = sorted({file.name for file in files if not file.is_file()})
    if missing or variables.exists():
        raise ValueError(
            "received a SavedModel whose variables are not the files that TensorFlow wrote "
            f"({first_ones(missing) or variables.name})"
        )
    with _loading(sum(file.stat().st_size for file in files if ".data-" in file.name)):
        trust.check(config, keras)
        # It is passed as text: SavedModels write tuples in a way of their own, which this reads.
        model = keras.models.model_from_json(json.dumps(config))
        try:
            # The load is partial: the optimizer's variables are left.
            loaded = model.load_weights(str(variables)).expect_partial()
            loaded.assert_existing_objects_matched()
        except (AssertionError, tf.errors.OpError) as error:
            raise ValueError(
                f"received a SavedModel whose variables are not those of its model ({error})"
            ) from error
        return model
