"""`relevo top`."""
