"""Language models as generators of candidates."""
