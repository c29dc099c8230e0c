"""All of it. Run it with `relevo worker pooler.service:app`."""

from pooler import checks, chores, cloning, ending, ondemand
from pooler.estate import app

__all__ = ["app", "checks", "chores", "cloning", "ending", "ondemand"]
