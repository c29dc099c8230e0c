"""Middleware: code around each enqueue and around each attempt, and headers that travel with jobs and messages"""

from __future__ import annotations

from relevo.middleware.middleware import Call, Middleware

__all__ = ["Call", "Middleware"]
