"""A small real Django project."""
