"""Request and reply between two processes: relevo's bus beside the plain way, a list for every answer."""
