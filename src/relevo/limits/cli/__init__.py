"""Commands for limits and pauses."""
