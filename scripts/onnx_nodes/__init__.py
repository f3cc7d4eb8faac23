"""The node tests of `onnx.backend.test`, all of them, through the backend: `python -m scripts.onnx_nodes`."""
