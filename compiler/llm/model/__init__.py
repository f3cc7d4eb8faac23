"""Transformer inference in numpy, export to ONNX, execution on the accelerator, and the weights."""
