"""Other ways to carry out a network: where candidates come from."""
