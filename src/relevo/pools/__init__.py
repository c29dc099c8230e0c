"""Pools: entities that are not jobs, in named states."""
