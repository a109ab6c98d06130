"""What an operation of a graph is computed from."""


def ancestors(op):
    """The operation and everything that it needs."""
    found, waiting = set(), [op]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
    return found
