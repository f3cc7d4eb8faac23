"""Conversions of ONNX operators to nodes of the graph."""
