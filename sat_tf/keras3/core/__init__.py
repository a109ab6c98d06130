"""The mathematics of `sat_tf.core` in `keras.ops`, on any backend of Keras 3."""
