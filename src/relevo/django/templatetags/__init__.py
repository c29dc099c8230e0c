"""Template tags and filters of the admin pages."""
