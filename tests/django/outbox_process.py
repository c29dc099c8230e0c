"""A process of the project that tests kill: `python -m tests.django.outbox_process enqueue 5` or `… relay`."""

from __future__ import annotations

import asyncio
import sys

from relevo.django.set_up import app

# isort: split
from django.db import transaction

from relevo.django.outbox.duty import OutboxDuty
from tests.django.shop import tasks
from tests.django.shop.models import Order


def main() -> None:
    match sys.argv[1:]:
        case ["enqueue", count]:
            with transaction.atomic():
                for n in range(int(count)):
                    order = Order.objects.create(name=str(n))
                    tasks.pay_and_forget.enqueue(order.pk)
        case ["relay"]:
            asyncio.run(OutboxDuty(app.engine).run_once())


if __name__ == "__main__":
    main()
