"""`relevo demo`."""
