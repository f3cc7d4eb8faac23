"""Training of the language model, with PyTorch (`make setup EXTRAS=torch`)."""
