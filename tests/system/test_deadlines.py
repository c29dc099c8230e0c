"""Deadlines on queues that no worker serves."""

from __future__ import annotations

from relevo import Relevo
from relevo.purging.deadlines import expiring
from relevo.store.plan import Call
from relevo.worker.deadlines import DeadlineSweeper
from tests.clock import Clock
from tests.conftest import AppFactory
from tests.servers import Server
from tests.system.timed import *  # noqa: F403
