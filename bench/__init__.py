"""How fast relevo is on this machine: `python -m bench`."""
