"""Generation of candidates by the built-in language model: requests, sampling under a grammar, and the generator."""
