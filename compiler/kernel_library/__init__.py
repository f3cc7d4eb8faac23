"""Hand-written lowerings of single operators onto the resident library."""
