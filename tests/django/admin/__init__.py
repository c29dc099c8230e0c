"""Pages of relevo in the admin."""
