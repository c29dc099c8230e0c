"""Schedules: jobs enqueued by the clock, each tick once."""
