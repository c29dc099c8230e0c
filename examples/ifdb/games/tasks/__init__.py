"""Tasks of games."""
