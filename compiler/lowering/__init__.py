"""From the graph to layers: which nodes become one layer, and which run on the host."""
