"""What will run the operations at hand, asked where one compiler or device needs other ones."""

import functools

import tensorflow as tf


def compiles_with_xla() -> bool:
    """Whether the graph that is being traced will be compiled by XLA."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        # TensorFlow offers no public way to ask.
        if type(graph._get_control_flow_context()).__name__ == "XLAControlFlowContext":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


@functools.cache
def has_accelerator() -> bool:
    """Whether TensorFlow sees a device that is not a CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_physical_devices())
