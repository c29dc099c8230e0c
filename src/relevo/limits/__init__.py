"""Limits, pauses and circuit breakers of queues, tasks and tenants."""
