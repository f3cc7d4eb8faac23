"""Front ends: import of ONNX, TFLite and PyTorch models."""
