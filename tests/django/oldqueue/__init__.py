"""A site whose task queue is still a table."""
