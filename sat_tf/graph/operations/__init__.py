"""The registry of operations: what sat-tf knows of each in TensorFlow and Keras 3, and how to ask.

An operation is one row: TensorFlow's calls, the layers of tf_keras that compute the same, and
Keras 3's function, in both directions. No framework is imported: Keras 3 alone can read it.
"""

from sat_tf.graph.operations import arithmetic, attention, movements, pooling

OPERATIONS = (
    *arithmetic.OPERATIONS,
    *attention.OPERATIONS,
    *movements.OPERATIONS,
    *pooling.OPERATIONS,
)

# The rows by the names of TensorFlow's functions, and the names of functions of reals alone.
CALLS = {call: row for row in OPERATIONS for call in row.calls}
OF_REALS = {call for row in arithmetic.OPERATIONS for call in row.calls}
# The rows that have a twin in tf_keras, by the classes of Keras 3's operations.
CLASSES = {
    name: row
    for row in OPERATIONS
    for name in (row.class_name, *row.synonyms)
    if row.twin is not None
}
# Finders of replacements for tf_keras layers that stand for an operation, by the layers' names.
LAYERS_OF_KERAS3 = attention.LAYERS_OF_KERAS3
LAYERS = {**arithmetic.LAYERS, **attention.LAYERS, **movements.LAYERS}


def fix_of(function: str) -> str:
    """The fix for a TensorFlow operation, to be appended to a message; "" where unknown."""
    row = CALLS.get(function)
    return f"; {row.fix}" if row and row.fix else ""
