"""The one function that loads saved models; safe by default."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sat_tf.atomic_file import expect_path, temporary_folder
from sat_tf.loading import saved_model, trust
from sat_tf.loading.layer_order import check_order
from sat_tf.loading.model_file import ModelFile, OtherFileError, open_model_file
from sat_tf.loading.tensor_functions import trusted_maker
from sat_tf.messages import shown

if TYPE_CHECKING:
    import tf_keras as keras

# What is not in the file: states of random layers, casts to wider types.
_LARGEST_RATIO = 8
_ALWAYS_BUILT_BYTES = 2**26
# What `quantize_for_bits` makes, as Keras registers it.
_SEVERAL_WIDTHS = "sat_tf>AdaptiveBits"


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
            if safe_mode:
                return keras.models.load_model(name, compile=False)
            with trusted_maker():
                return keras.models.load_model(name, compile=False, safe_mode=False)
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


def _from_folder(path: pathlib.Path, safe_mode: bool) -> "keras.Model":
    if not saved_model.is_saved_model(path):
        raise ValueError("received a folder without a saved_model.pb, expected a SavedModel")
    saved_model.expect_layers(path)
    if not safe_mode:
        with _loading(None), trusted_maker():
            import tf_keras as keras

            return keras.models.load_model(path, compile=False)
    config = saved_model.saved_model_config(path)
    with _loading(saved_model.variable_bytes(path)):
        trust.check(config)
        check_order(config)
        return saved_model.rebuilt(path, config)


@contextlib.contextmanager
def bounded_weights(weight_bytes: int | None) -> Iterator[None]:
    """A scope in which TensorFlow creates no more variables than the weights of a file account for.

    Args:
        weight_bytes: of the file; None bounds nothing.

    Raises:
        ValueError: in the scope, before a variable beyond that is created.
    """
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

    Args:
        most: bytes.
        problem: how the error goes on behind the bytes that it received.

    Raises:
        ValueError: in the scope, before a variable beyond that is created.
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
    """The scopes in which tf_keras loads; its errors on a damaged model become ValueErrors.

    Args:
        weight_bytes: of the file; None bounds nothing.
    """
    import tensorflow_model_optimization as tfmot

    try:
        # So that a model that TFMOT has pruned, clustered or quantized is refused as such, and not
        # for an unknown class.
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
