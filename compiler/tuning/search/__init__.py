"""Search methods, and the driver that runs them."""
