"""Measurement of candidates on simulated machines."""
