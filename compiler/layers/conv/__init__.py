"""Convolutions, and dense layers as convolutions of one pixel."""
