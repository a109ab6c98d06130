"""Reading Keras models once: as a graph, flat, each call a layer of a known kind."""
