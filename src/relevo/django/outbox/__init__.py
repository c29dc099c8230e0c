"""The outbox: jobs stored in the database, in the transaction that they belong to, and relayed to their queues.

Add "relevo.django.outbox" to INSTALLED_APPS, run `manage.py migrate`, and set `RELEVO["outbox"] = True`.
"""
