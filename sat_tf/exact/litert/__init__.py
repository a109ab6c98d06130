"""LiteRT: files run tensor by tensor, in processes of their own; and TensorFlow's converter."""
