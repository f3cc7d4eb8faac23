"""Streaming inference on a live machine, with programs replaced while it serves."""
