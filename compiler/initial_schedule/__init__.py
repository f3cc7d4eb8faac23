"""Initial schedule of a network: tilings chosen by estimated cycles, reduced until they fit the memories."""
