"""Generation of candidates by the built-in language model: requests, candidate pools, and the generator."""
