"""Tuning by measurement: search methods, candidate generators, fusion, program edits, calibration."""
