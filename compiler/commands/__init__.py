"""Unit commands before address assignment, and the context shared by the code generators of all layers."""
