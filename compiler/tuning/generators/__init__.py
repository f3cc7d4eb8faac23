"""Generators: everything that proposes ways to execute layers."""
