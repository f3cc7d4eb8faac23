"""Language models behind an OpenAI-compatible endpoint: asked for candidates by text, within limits."""
