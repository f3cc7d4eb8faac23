"""The project's own networks: training, quantization, export, and the resulting files."""
