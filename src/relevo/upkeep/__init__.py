"""Upkeep: what is too old or no longer used is ended, removed and reported."""
