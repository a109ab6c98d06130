"""What an integer TFLite file computes, and the proof of it, in NumPy and LiteRT alone.

A file is read into a graph of operations, each of which simulates what its kernel computes, bit for
bit. `certificate` runs the file and counts every difference; `operator_comparison` does so for
files of other tools; `device` takes the proof to another machine; `targets` says what processors
take. Nothing here needs TensorFlow, Keras, or what makes such files.
"""
