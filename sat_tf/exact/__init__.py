"""The computation of an integer TFLite file, and the proof of it, in NumPy and LiteRT alone.

A file is read into a graph of operations, each of which simulates what its kernel computes, bit for
bit. `certificate` runs the file and counts every difference; `operator_comparison` does so for
files of other tools; `device` takes the proof to another machine; `targets` lists the operators of
processors. Nothing here needs TensorFlow, Keras, or the code that writes these files.
"""
