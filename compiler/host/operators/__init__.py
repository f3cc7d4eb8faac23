"""Operators of ONNX as onnxruntime computes them, where ONNX's own reference in numpy does otherwise."""
