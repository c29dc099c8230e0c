"""The process of the fake provider: `python -m provider SOCKET`. It keeps its machines in SOCKET.json.

Each line is a request as JSON, `{"do": "clone", "vm": …}`; each answer is a line, `{"ok": …}` or `{"error": kind, …}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from provider.machines import Machines, Refused


async def serve(socket: Path) -> None:
    """Answer until somebody ends the process, however rudely."""
    machines = Machines(socket.with_suffix(".json"))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            answer = perform(machines, line)
            await asyncio.sleep(machines.delay)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(talk, socket)
    print("the provider is there", flush=True)
    await server.serve_forever()


def perform(machines: Machines, line: bytes) -> dict[str, object]:
    """One request, one answer."""
    try:
        return {"ok": machines.perform(**json.loads(line))}
    except Refused as refused:
        return {"error": refused.kind, "message": str(refused)}
    except (TypeError, ValueError) as error:
        return {"error": "bad_request", "message": str(error)}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.unlink(missing_ok=True)  # of one that was killed
    asyncio.run(serve(place))
