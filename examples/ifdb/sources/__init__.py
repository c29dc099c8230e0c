"""The sites from which games and news come, small and local, so that the example needs no network."""
