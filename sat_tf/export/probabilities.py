"""A graph that ends in probabilities."""

import dataclasses

from sat_tf.export.graph import Graph, Softmax, Tensor


def with_softmax(graph: Graph) -> Graph:
    """The graph with a float softmax behind its output; the same where it has one already.

    The codes stay what they are: only the float values behind the last DEQUANTIZE change.
    """
    if any(isinstance(operation, Softmax) for operation in graph.operations):
        return graph
    graph.expect_one_of_each("softmax=True")
    images = {image.name for image in graph.images}
    name = f"{graph.output}_probabilities"
    while name in graph.tensors or name in images:
        name += "_"
    output = Tensor(name, graph.tensors[graph.output].shape, None)
    return dataclasses.replace(
        graph,
        tensors={**graph.tensors, name: output},
        operations=(*graph.operations, Softmax((graph.output,), name)),
        output=name,
    )
