"""Stages of the FUSE pipeline."""
