"""Cost models: bounds by roofline, compulsory traffic, energy, and the learned model of cycles."""
