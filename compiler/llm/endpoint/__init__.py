"""Generator that uses a remote language model through an OpenAI-compatible endpoint, within spending limits."""
