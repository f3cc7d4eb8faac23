"""Co-simulation: a common device interface of the RTL and the golden model, and the host driver that uses this
interface.
"""
