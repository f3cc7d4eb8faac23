"""Pictures of views as SVG, and their text formats."""
