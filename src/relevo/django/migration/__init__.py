"""Moves a queue that is a table of the database (IFDB's `TaskQueueElement`) into relevo, and back again."""
