"""Hardware counters: cycles by cause and layer, measurements and traces."""
