"""The registry of operations, a file for each family of them; `graph/operation_kinds.py` joins it.

An operation is one row: TensorFlow's calls, the layers of tf_keras that compute the same, and
Keras 3's function, in both directions.
"""
