"""Inference as a stream on a live machine, whose programs are replaced meanwhile."""
