from sat_tf.export.lowering.pipeline import deployed_graph
from tests.export.zoo import ZOO


def test_a_graph_prints_every_operation_and_the_sums_of_all():
    graph = deployed_graph(ZOO["bottleneck"].quantized())
    printed = str(graph)
    for operation in graph.operations:
        assert operation.output in printed
    assert f"{len(graph.operations)} operations, {len(graph.integer_tensors)} integer" in printed
    adds = sum(operation.multiply_adds(graph) for operation in graph.operations)
    assert f"{adds:,} multiply-adds an image" in printed
