"""Unit commands before addresses are fixed, and what all code generators of layers share."""
