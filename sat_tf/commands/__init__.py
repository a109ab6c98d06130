"""The commands of `sat-tf`, one file each; cheap checks come before TensorFlow is loaded."""
