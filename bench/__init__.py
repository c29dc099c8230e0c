"""How fast relevo is on this machine, alone or beside its peers: `python -m bench`."""
