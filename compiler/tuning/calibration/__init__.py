"""Calibration of the learned cost model: small networks measured under several schedules."""
