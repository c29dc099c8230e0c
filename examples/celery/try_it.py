"""Place orders and make an album, and show what came of it: python try_it.py, beside the two workers of the README."""

from __future__ import annotations

from relevo.errors import JobFailed

from shop.app import app
from shop.orders import place
from shop.pictures import make_album

receipt = place(7, 990)
album = make_album("teapot")
refused = place(13, 450)

print(receipt.result(timeout="1m"))
for job in receipt.info().members[:2]:
    print(f"  {job.task}:", ", then ".join([one.how for one in app.job(job.id).info().attempts] + [job.state]))
print(album.result(timeout="1m"))
print("  queues:", ", ".join(sorted({member.queue for member in album.info().members})))
try:
    refused.result(timeout="1m")
except JobFailed as error:
    print(f"{error.error}: {app.job(refused.info().callbacks[0][1].id).result(timeout='1m')}")
