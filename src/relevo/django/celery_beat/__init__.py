"""Imports the schedules of django-celery-beat."""
