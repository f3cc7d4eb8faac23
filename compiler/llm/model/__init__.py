"""The transformer: in numpy, in ONNX, on the accelerator; its weights."""
