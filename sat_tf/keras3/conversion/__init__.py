"""Models from Keras 3 to tf_keras, which TFMOT needs, and quantized ones back to Keras 3."""
