"""The graph that every model becomes: tensors, nodes, and what may be asked of them."""
