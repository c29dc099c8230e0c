from relevo import Relevo, current_job
from tests.working import drain, working
async def test_c(bus) -> None:
    hops = []
    mail = bus.service("mail")
    @mail.action("send", retries=0)
    async def send() -> None:
        hops.append(current_job().headers.depth)
        await mail.asend("mail.send")
    await bus.service("shop").asend("mail.send")
    w = await drain(bus)
    print(hops, bus.queue("mail:actions").stats(), w.done, w.failed)
    w = await drain(bus)
    print(hops, bus.queue("mail:actions").stats(), w.done, w.failed)
