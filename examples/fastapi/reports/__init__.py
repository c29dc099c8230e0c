"""A web app that orders reports and shows how they are written: web.py enqueues, tasks.py runs in workers."""
