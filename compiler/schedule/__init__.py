"""How a layer is carried out, as data, and the first guess at it."""
