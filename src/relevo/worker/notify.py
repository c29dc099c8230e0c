"""Notifies systemd of the service's state by its notification socket, if there is one."""

from __future__ import annotations

import os
import socket


def notify(message: str) -> bool:
    """Send a message such as READY=1; False if there is no listener."""
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
    """Seconds between watchdog notifications: half of systemd's limit; None: no watchdog."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    return int(usec) / 2_000_000 if usec.isdigit() and int(usec) else None
