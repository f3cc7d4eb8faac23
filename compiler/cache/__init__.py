"""Persistent caches of compiled networks and of proofs."""
