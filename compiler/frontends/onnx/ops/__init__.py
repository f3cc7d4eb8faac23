"""ONNX operators: for each a conversion to nodes of the graph."""
