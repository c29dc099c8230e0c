"""Tells systemd how the service is, by its notification socket. Without one, says nothing."""

from __future__ import annotations

import os
import socket


def notify(message: str) -> bool:
    """Send a message such as READY=1; False where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(message.encode(), address)
    except OSError:
        return False
    return True


def watchdog_every() -> float | None:
    """Seconds between signs of life that systemd asked for: half of its limit; None: it did not ask."""
    asked = os.environ.get("WATCHDOG_USEC", "")
    return int(asked) / 2_000_000 if asked.isdigit() and int(asked) else None
