"""Layers that are not quantized: the fixes for some, and which of them Keras 3 has too."""

import tf_keras as keras

from sat_tf.graph.layers.kind import SAME, Keras3, Kinds, LayerKind

L = keras.layers


class LeftFloat(keras.layers.Layer):
    """A layer that stands for one that tf_keras does not have; abstract, and never quantized."""

    fix = ""  # what to use in its place


_OPEN_SIZE = "the size of images is unknown behind it; use RandomZoom, or resize in the data"
_IN_INFERENCE = "it acts in inference too; augment the data"
_OF_SOUND = "compute it in front of the model"
_IN_BOTH = LayerKind(quantized=False, keras3=SAME)
_OF_IDS = LayerKind(quantized=False, keras3=SAME, reads_ids=True)

# Layers of Keras 3 that tf_keras does not have, by their names there, and what they could be.
OF_KERAS3_ALONE = {
    **{
        f"Adaptive{kind}Pooling{rank}": f"where the sizes divide, {kind}Pooling{rank} does the same"
        for kind in ("Average", "Max")
        for rank in ("1D", "2D")
    },
    "AutoContrast": _IN_INFERENCE,
    "ContrastLimitedAdaptiveHistogramEqualization": _IN_INFERENCE,
    "Equalization": _IN_INFERENCE,
    "MelSpectrogram": _OF_SOUND,
    "RMSNormalization": "BatchNormalization is folded into the layers around it",
    "STFTSpectrogram": _OF_SOUND,
    "Solarization": _IN_INFERENCE,
}

KINDS: Kinds = {
    L.Lambda: LayerKind(
        quantized=False,
        fix="write what it does on the tensor itself, as in tf.nn.depth_to_space(x, 2)",
    ),
    L.RandomCrop: LayerKind(
        quantized=False,
        # That of Keras 3 passes its input through in inference.
        fix="it resizes in inference; crop in the data",
    ),
    L.RandomHeight: LayerKind(quantized=False, fix=_OPEN_SIZE),
    L.RandomWidth: LayerKind(quantized=False, fix=_OPEN_SIZE),
    L.AdditiveAttention: _IN_BOTH,
    L.Attention: _IN_BOTH,
    L.MultiHeadAttention: _IN_BOTH,
    L.Dot: _IN_BOTH,
    L.EinsumDense: _IN_BOTH,
    L.Embedding: _OF_IDS,
    L.ConvLSTM1D: _IN_BOTH,
    L.ConvLSTM2D: _IN_BOTH,
    L.ConvLSTM3D: _IN_BOTH,
    L.GRU: _IN_BOTH,
    L.GRUCell: _IN_BOTH,
    L.LSTM: _IN_BOTH,
    L.LSTMCell: _IN_BOTH,
    L.RNN: LayerKind(quantized=False, keras3=Keras3(wrapped={"cell": "cell"})),
    L.SimpleRNN: _IN_BOTH,
    L.SimpleRNNCell: _IN_BOTH,
    L.Masking: _IN_BOTH,
    L.RepeatVector: LayerKind(
        quantized=False,
        fix="sat_tf.quantize_model does; else use Reshape((1, size)) and UpSampling1D(n)",
        keras3=SAME,
    ),
    L.CategoryEncoding: _OF_IDS,
    L.CenterCrop: _IN_BOTH,
    L.Discretization: _IN_BOTH,
    L.SpectralNormalization: LayerKind(quantized=False, keras3=Keras3(wrapped={"layer": "layer"})),
    L.TimeDistributed: LayerKind(
        quantized=False,
        fix="sat-tf takes it around a Dense, an activation, a normalization of the last axis, "
        "Flatten and Reshape, which work on all steps at once; let another layer do so too, as a "
        "Conv2D of kernel_size (1, n) does in place of a Conv1D, or pass unsupported='float'",
        keras3=Keras3(wrapped={"layer": "layer"}),
    ),
    L.Bidirectional: LayerKind(
        quantized=False,
        keras3=Keras3(
            wrapped={"layer": "forward_layer", "backward_layer": "backward_layer"},
        ),
    ),
}
