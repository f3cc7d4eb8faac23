"""Networks of the project itself: training, quantization, export, and the resulting files."""
