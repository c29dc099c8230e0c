"""A shop that came from Celery: the app is in app.py, its tasks are in the other modules."""
