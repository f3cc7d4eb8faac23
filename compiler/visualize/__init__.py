"""Graph views of every compiler stage, charts, and the profile page."""
