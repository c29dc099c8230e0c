"""Migrations of the outbox."""
