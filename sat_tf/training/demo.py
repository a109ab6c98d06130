"""The run that happens where nothing is asked for: handwritten digits, in minutes."""

# The text of configs/digits/mobilenet_v2_w4a4.yaml, which is not part of an installed package.
DEMO = """\
# Handwritten digits of scikit-learn: no download, and minutes on two processor cores.
name: digits_mobilenet_v2_w4a4
seed: 0
data:
  name: digits
  options:
    image_size: 32
    test_fraction: 0.3  # of 1797, so that one image is a fifth of a point
  shift_pixels: 2
model:
  name: mobilenet_v2
  options:
    width_multiplier: 0.35
    stem_stride: 1
# Integer from the image to the logits; the first and last layer have 8-bit weights.
policy:
  weight_bits: 4
  activation_bits: 4
  stream_bits: 8
stages:
  float:
    epochs: 18
    batch_size: 32
    base_learning_rate: 0.4  # of batches of 256 images: the peak is 0.05
    warmup_learning_rate: 0.01
    warmup_epochs: 2
  quantized:
    epochs: 20
    base_learning_rate: 0.1
    warmup_epochs: 1
# Averages over few small batches are noisy; measured anew, the statistics are not.
calibration:
  num_images: 1024
  final_statistics: true
"""
