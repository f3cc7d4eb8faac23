"""The feedback loop: search, candidate generators, fusion, measurement, calibration."""
