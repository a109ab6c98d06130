"""Small files, and copies of files that give every code, for runtimes that give outputs only."""

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl
from full_size import make_realistic, smooth_images

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models

_SIZE, _CLASSES, _CALIBRATION_IMAGES = 32, 10, 32


class SmallFile(NamedTuple):
    """A file with random weights, whose statistics are as hard as trained ones.

    Attributes:
        model: its family.
        policy: in words.
        settings: of the family.
        fields: the policy.
    """

    model: str
    policy: str
    settings: dict[str, Any]
    fields: BitPolicy

    def exported(self, count: int) -> tuple[bytes, np.ndarray]:
        """The file, and images that it was not calibrated on."""
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        model = getattr(models, self.model)(_SIZE, _CLASSES, seed=0, **self.settings)
        make_realistic(model)
        pictures = smooth_images(_CALIBRATION_IMAGES + count, _SIZE)
        calibration, images = np.split(pictures, [_CALIBRATION_IMAGES])
        quantized = sat_tf.quantize_model(model, self.fields)
        sat_tf.calibrate(quantized, calibration.astype(np.float32))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.tflite"
            sat_tf.export_tflite(quantized, path)
            return path.read_bytes(), images


_SMALL_RESNET = {"width_multiplier": 0.25, "stem_pool": False}
SMALL_FILES = (
    SmallFile("mobilenet_v2", "w4a4", {"width_multiplier": 0.5}, BitPolicy.mobile(4)),
    SmallFile("mobilenet_v2", "w8a8", {"width_multiplier": 0.5}, BitPolicy.mobile(8)),
    SmallFile("resnet18", "w4a4", _SMALL_RESNET, BitPolicy.mobile(4)),
)


def with_every_code(content: bytes, names: tuple[str, ...]) -> bytes:
    """A copy of a file whose outputs are its own, and behind it tensors cast to int32."""
    model = tfl.ModelT.InitFromPackedBuf(content, 0)
    (subgraph,) = model.subgraphs
    indices = {tensor.name.decode(): index for index, tensor in enumerate(subgraph.tensors)}
    cast = tfl.OperatorCodeT()
    cast.builtinCode = cast.deprecatedBuiltinCode = tfl.BuiltinOperator.CAST
    cast.version = 1
    model.operatorCodes.append(cast)
    outputs = list(subgraph.outputs)
    for name in names:
        source = subgraph.tensors[indices[name]]
        made = tfl.TensorT()
        made.name, made.type, made.shape = f"{name}/codes", tfl.TensorType.INT32, source.shape
        made.shapeSignature, made.buffer = source.shapeSignature, 0
        subgraph.tensors.append(made)
        operator = tfl.OperatorT()
        operator.opcodeIndex = len(model.operatorCodes) - 1
        operator.inputs, operator.outputs = [indices[name]], [len(subgraph.tensors) - 1]
        subgraph.operators.append(operator)
        outputs += operator.outputs
    subgraph.outputs = outputs
    # Its outputs are those of the file alone; without it LiteRT takes those of the graph.
    model.signatureDefs = []
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def differing(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> int:
    """How many codes of all tensors differ."""
    return sum(int(np.count_nonzero(codes != expected[name])) for name, codes in found.items())
