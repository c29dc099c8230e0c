"""The tests of django-tasks-rq and django-tasks-db, run against relevo's backend: `./dev django`.

Their files are not part of this project. `./dev django` downloads them; `suites.py` says which of their tests are about
their own storage or their own commands, and why.
"""
