"""Intermediate representation of models: graphs of tensors and nodes."""
