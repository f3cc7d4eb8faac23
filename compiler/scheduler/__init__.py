"""The first schedule of a network: tilings by estimated cycles, made to fit the memories."""
