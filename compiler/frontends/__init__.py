"""Model files in, graphs out: one module for each format, and what they share."""
