"""Execution of all node tests of `onnx.backend.test` with the ONNX backend: `python -m scripts.onnx_nodes`."""
