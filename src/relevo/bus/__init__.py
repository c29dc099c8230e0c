"""The bus: services that talk to each other through the same queues that jobs run on."""

from relevo.bus.bus import Bus
from relevo.bus.service import Service

__all__ = ["Bus", "Service"]
