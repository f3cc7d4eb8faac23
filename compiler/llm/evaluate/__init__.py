"""How good the language model is on layers it has not seen."""
