"""Convolutions, and dense layers as 1x1 convolutions."""
