"""`relevo queue`: how one queue stands, and a wait until it is empty."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from relevo import Relevo
from tests.eventually import PATIENCE
from tests.servers import Server
from tests.system.shell import relevo, relevo_process
from tests.working import working


def test_queue_is_shown_and_of_a_single_server_no_slot(server: Server, app: Relevo) -> None:
    task = app.task(name="t")(lambda: None)
    task.enqueue()
    task.using(delay="1h").enqueue()
    shown = relevo("queue", "default", "--name", app.name, url=server.url)
    assert (shown.code, shown.err) == (0, "")
    assert f"queue default of app {app.name} in test" in shown.out
    assert "1 ready, 1 scheduled, 0 waiting, 0 running" in shown.out
    assert "slot" not in shown.out
    found = relevo("queue", "default", "--name", app.name, "--json", url=server.url).json
    assert (found["name"], found["ready"], found["living"], found["letters"]) == ("default", 1, 2, 0)
    assert (found["slot"], found["node"], found["keys"]) == (None, None, None)


def test_name_that_is_not_in_use_is_shown_with_a_warning_and_not_waited_for(server: Server, app: Relevo) -> None:
    app.task(name="t")(lambda: None).enqueue()
    shown = relevo("queue", "defualt", "--name", app.name, url=server.url)
    assert (shown.code, shown.out.splitlines()[-1]) == (1, "not in use")
    drain = relevo("queue", "drain", "defualt", "--name", app.name, url=server.url)
    assert drain.code == 2
    assert "did you mean 'default'?" in drain.err


def test_drain_waits_until_all_jobs_have_ended(server: Server, app: Relevo) -> None:
    begun, let_go = threading.Event(), threading.Event()

    @app.task(name="hold")
    def hold() -> None:
        begun.set()
        let_go.wait(PATIENCE)

    job = hold.enqueue()
    words = ["queue", "drain", "default", "--name", app.name]
    late = relevo(*words, "--timeout", "0s", url=server.url)
    assert (late.code, late.out.splitlines()[-1]) == (1, "not empty yet")
    with working(app), ThreadPoolExecutor(1) as pool:
        assert begun.wait(PATIENCE)
        draining = pool.submit(relevo_process, *words, "--json", url=server.url)
        assert relevo(*words, "--timeout", "1ms", url=server.url).code == 1
        assert not draining.done()
        let_go.set()
        drained = draining.result(PATIENCE)
        assert job.info().state == "done"
    assert (drained.code, drained.json["living"], drained.json["letters"]) == (0, 0, 0)
