"""Stands for a hypervisor: a process of its own that clones, starts and destroys machines, and can be out of order."""
