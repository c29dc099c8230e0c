"""Middleware: code around each enqueue and around each attempt, and headers that travel with jobs and messages"""

from __future__ import annotations

from relevo.middleware.context_vars import ContextVars
from relevo.middleware.middleware import Call, Middleware
from relevo.middleware.sentry import Sentry
from relevo.middleware.structlog import Structlog

__all__ = ["Call", "ContextVars", "Middleware", "Sentry", "Structlog"]
