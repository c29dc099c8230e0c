"""Queues in the hands of operators: counts, listings, clear, and the lists by which queues are found."""
