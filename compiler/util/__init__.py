"""Utilities shared by all packages of the compiler."""
