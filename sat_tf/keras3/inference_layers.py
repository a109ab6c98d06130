"""The Keras 3 layers of quantized networks: they need nothing but Keras 3, on any backend.

Importing `sat_tf` is enough for Keras 3 to load files with these layers. Without it, see
`plain_form`.
"""

from typing import Any

import keras as keras3
import numpy as np
from keras import ops

_register = keras3.saving.register_keras_serializable(package="sat_tf")


def _cast(x: Any, dtype: Any) -> Any:
    """`x` in that type, without an operation where it has it."""
    found, wanted = map(keras3.backend.standardize_dtype, (x.dtype, dtype))
    return x if found == wanted else ops.cast(x, wanted)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which files hold as such; tensors as they are."""
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value


@_register
class QuantizedActivation(keras3.layers.Layer):
    """Rounds a tensor to its grid: q = scale · n, with codes n = lowest_code..highest_code.

    Formula, in float32 and in this order, so that backends agree to the last bit:

        n = floor((min(max(x, low), high) - low) / scale + lowest_code + 0.5)

    with low = scale · lowest_code and high = scale · highest_code; ties go up, and NaN stays NaN.
    It is a rectifier too where the lowest code is 0. Where codes are counted from zero, it is

        n = min(max(floor(x / scale + 0.5), lowest_code), highest_code)

    which differs where rounding x - low moves a value over a tie.

    Args:
        lowest_code: 0, or below 0 for tensors that can be negative.
        highest_code: above it.
        from_zero: count codes from zero, and not from the lowest one.
        **options: options of any Keras layer.

    Attributes:
        scale: the real value of one code, a float32 scalar weight that is not trained.
    """

    def __init__(
        self, lowest_code: int, highest_code: int, from_zero: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        self.lowest_code = int(lowest_code)
        self.highest_code = int(highest_code)
        self.from_zero = bool(from_zero)
        self.supports_masking = True
        # A weight and not a setting: compilers divide by constants in their own way.
        self.scale = self.add_weight(
            name="scale",
            shape=(),
            dtype="float32",
            initializer="ones",
            trainable=False,
            autocast=False,
        )

    def build(self, input_shape: Any) -> None:
        """Creates nothing: the weights exist already."""
        del input_shape
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The values of `inputs` on the grid, in their type."""
        return self._values(inputs, ops.convert_to_tensor(self.scale))

    def with_constants(self, inputs: Any) -> Any:
        """The same, with the scale as a constant."""
        return self._values(inputs, np.float32(ops.convert_to_numpy(self.scale)))

    def _values(self, inputs: Any, scale: Any) -> Any:
        codes = self.codes(_cast(inputs, "float32"), scale)
        return _cast(ops.multiply(codes, _plain(scale)), inputs.dtype)

    def codes(self, x: Any, scale: Any) -> Any:
        """The integers n of float32 values.

        Args:
            x: the values.
            scale: the real value of one code, a tensor, or a NumPy float32 for a constant.
        """
        lowest, highest = np.float32(self.lowest_code), np.float32(self.highest_code)
        if self.from_zero:
            codes = ops.floor(ops.add(ops.divide(x, _plain(scale)), 0.5))
            codes = ops.minimum(ops.maximum(codes, _plain(lowest)), _plain(highest))
            return ops.where(ops.isnan(x), x, codes)
        low, high = _plain(scale * lowest), _plain(scale * highest)
        codes = ops.maximum(ops.minimum(x, high), low)
        # With the lowest code 0, low is 0, too.
        codes = ops.subtract(codes, low) if lowest else codes
        codes = ops.divide(codes, _plain(scale))
        codes = ops.add(codes, _plain(lowest)) if lowest else codes
        return ops.floor(ops.add(codes, 0.5))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """That of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        codes = {"lowest_code": self.lowest_code, "highest_code": self.highest_code}
        return {**super().get_config(), **codes, "from_zero": self.from_zero}


@_register
class PixelGrid(keras3.layers.Layer):
    """The model's input x as the first layers read it: (x - shift) / ratio, in float32.

    Args:
        channels: how many values `shift` and `ratio` have; 1 is one for all channels.
        reverses: the channels are then reversed.
        **options: options of any Keras layer.

    Attributes:
        shift: float32, a weight that is not trained.
        ratio: likewise.
    """

    def __init__(self, channels: int, reverses: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.channels, self.reverses = int(channels), bool(reverses)
        # Weights and not settings, as the scale of `QuantizedActivation`.
        self.shift, self.ratio = (
            self.add_weight(
                name=name,
                shape=(self.channels,),
                dtype="float32",
                initializer=start,
                trainable=False,
                autocast=False,
            )
            for name, start in (("shift", "zeros"), ("ratio", "ones"))
        )

    def build(self, input_shape: Any) -> None:
        """Creates nothing: the weights exist already."""
        del input_shape
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The values of `inputs` on the grid, in their type."""
        shift, ratio = (ops.convert_to_tensor(value) for value in (self.shift, self.ratio))
        return self._values(inputs, shift, ratio)

    def with_constants(self, inputs: Any) -> Any:
        """The same, with shift and ratio as constants."""
        shift, ratio = (ops.convert_to_numpy(value) for value in (self.shift, self.ratio))
        return self._values(inputs, shift, ratio)

    def _values(self, inputs: Any, shift: Any, ratio: Any) -> Any:
        x = _cast(inputs, "float32")
        values = ops.divide(ops.subtract(x, _plain(shift)), _plain(ratio))
        return _cast(ops.flip(values, axis=-1) if self.reverses else values, inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """That of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "channels": self.channels, "reverses": self.reverses}


@_register
class FusedBatchNormalization(keras3.layers.BatchNormalization):
    """BatchNormalization of images as tf_keras computes it: by TensorFlow's fused kernel.

    Keras 3's own multiplies out first, so that its last bits differ, and now and then a rounded
    code behind it. On other backends it is Keras 3's own. It only infers.
    """

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The normalized tensor, by the moving statistics."""
        if keras3.backend.backend() != "tensorflow":
            return super().call(inputs, training=False, mask=mask)
        import tensorflow as tf

        ones = ops.ones_like(self.moving_mean)
        outputs, _, _ = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            scale=ones if self.gamma is None else self.gamma,
            offset=ones * 0.0 if self.beta is None else self.beta,
            mean=ops.convert_to_tensor(self.moving_mean),
            variance=ops.convert_to_tensor(self.moving_variance),
            epsilon=self.epsilon,
            is_training=False,
        )
        return outputs


@_register
class FusedLayerNormalization(keras3.layers.LayerNormalization):
    """LayerNormalization as tf_keras computes it: by the fused kernel where that can be used.

    Keras 3's own has other last bits. On other backends than TensorFlow it is Keras 3's own.
    """

    def call(self, inputs: Any) -> Any:
        """The normalized tensor."""
        if keras3.backend.backend() != "tensorflow":
            return super().call(inputs)
        import tensorflow as tf

        x = tf.cast(inputs, self.compute_dtype)
        rank = len(x.shape)
        axes = sorted(axis % rank for axis in np.atleast_1d(self.axis).tolist())
        shape = [x.shape[axis] if axis in axes else 1 for axis in range(rank)]
        gamma, beta = (
            None if weight is None else tf.reshape(ops.convert_to_tensor(weight), shape)
            for weight in (self.gamma, self.beta)
        )
        # The kernel takes no smaller epsilon, and normalizes what is last.
        is_last = axes == list(range(axes[0], rank))
        if self.epsilon < 1.001e-5 or not is_last or self.variable_dtype != "float32":
            wide = tf.cast(x, "float32") if self.variable_dtype == "float32" else x
            mean, variance = tf.nn.moments(wide, axes, keepdims=True)
            outputs = tf.nn.batch_normalization(wide, mean, variance, beta, gamma, self.epsilon)
            return tf.cast(outputs, x.dtype)
        sizes = tf.shape(x)
        before, inside = (tf.reduce_prod(part) for part in (sizes[: axes[0]], sizes[axes[0] :]))
        rows = tf.reshape(x, [1, before, inside, 1])
        outputs, _, _ = tf.compat.v1.nn.fused_batch_norm(
            rows,
            scale=tf.ones([before]),
            offset=tf.zeros([before]),
            epsilon=self.epsilon,
            data_format="NCHW",
        )
        outputs = tf.reshape(outputs, sizes)
        outputs.set_shape(x.shape)
        outputs = outputs if gamma is None else outputs * tf.cast(gamma, outputs.dtype)
        return outputs if beta is None else outputs + tf.cast(beta, outputs.dtype)
