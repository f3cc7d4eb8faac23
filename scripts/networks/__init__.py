"""Networks that this project trains: training, quantization, export, and the resulting files."""
