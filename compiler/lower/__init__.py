"""From the graph to layers: what the machine does in one go, in integers."""
