"""The machines of the fake provider, kept in a file: killing the process that minds them kills none of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: What machines can be cloned from.
TEMPLATES = ("templates/centos-7", "templates/debian-12")


class Refused(Exception):
    """The provider says no. `kind` is for programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Machine:
    """One machine."""

    name: str
    pool: str
    template: str
    #: When it answers, in Unix time.
    up_at: float
    ip: str
    host: str = "host-1"
    unplugged: bool = False
    disks: list[int] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)


class Machines:
    """What the provider can do, and what it can be told to do wrong."""

    def __init__(self, file: Path) -> None:
        self._file = file
        known = json.loads(file.read_text("utf-8")) if file.exists() else {}
        self._machines = {name: Machine(**one) for name, one in known.items()}
        self._boot = 0.2
        self._delay = 0.0
        #: Of what, and of which machine ('': of any), so many will fail.
        self._to_fail: Counter[tuple[str, str]] = Counter()

    @property
    def delay(self) -> float:
        """Seconds that each answer takes."""
        return self._delay

    def perform(self, do: str, **given: object) -> object:
        """Do one thing; `Refused` says why not."""
        for which in ((do, ""), (do, str(given.get("vm")))):
            if self._to_fail[which] > 0:
                self._to_fail[which] -= 1
                raise Refused("error", f"{do} failed: the datastore is locked")
        method = getattr(self, f"do_{do}", None)
        if method is None:
            raise Refused("unknown", f"there is no {do}")
        answer: object = method(**given)
        self._keep()
        return answer

    # for the pooler
    def do_clone(self, vm: str, template: str, pool: str) -> object:
        """Make a machine. Asked again it is the same one."""
        if template not in TEMPLATES:
            raise Refused("template_not_found", f"template {template} does not exist")
        if vm not in self._machines:
            taken = {machine.ip for machine in self._machines.values()}
            ip = next(ip for number in range(1, 65_536) if (ip := f"10.0.{number // 256}.{number % 256}") not in taken)
            self._machines[vm] = Machine(vm, pool, template, time.time() + self._boot, ip)
        return asdict(self._machines[vm])

    def do_look(self, vm: str) -> object:
        """A machine and whether it answers; None: there is none."""
        machine = self._machines.get(vm)
        return machine and {**asdict(machine), "up": time.time() >= machine.up_at and not machine.unplugged}

    def do_inventory(self, pool: str) -> object:
        """The names of all machines of a pool."""
        return sorted(name for name, one in self._machines.items() if one.pool == pool)

    def do_destroy(self, vm: str) -> object:
        """End a machine; whether there was one."""
        return self._machines.pop(vm, None) is not None

    def do_migrate(self, vm: str, host: str) -> object:
        """Move it to another host."""
        self._get(vm).host = host
        return host

    def do_disk(self, vm: str, size: int) -> object:
        """Give it a disk of so many GB."""
        self._get(vm).disks.append(size)
        return size

    def do_snapshot(self, vm: str, name: str) -> object:
        """Keep its state under a name."""
        machine = self._get(vm)
        if name not in machine.snapshots:
            machine.snapshots.append(name)
        return name

    def do_revert(self, vm: str, name: str) -> object:
        """Bring it back to a snapshot."""
        if name not in self._get(vm).snapshots:
            raise Refused("snapshot_not_found", f"{vm} has no snapshot {name}")
        return name

    # for whoever wants to see what happens then
    def do_forget(self, vm: str) -> object:
        """Lose a machine."""
        return self.do_destroy(vm)

    def do_unplug(self, vm: str) -> object:
        """Let it answer no more."""
        self._get(vm).unplugged = True
        return vm

    def do_fail(self, what: str, vm: str, times: int) -> object:
        """Fail the next so many times that somebody wants this, of one machine or ('') of any."""
        self._to_fail[what, vm] = times
        return times

    def do_boot(self, seconds: float) -> object:
        """New machines take so long to come up."""
        self._boot = seconds
        return seconds

    def do_slow(self, seconds: float) -> object:
        """Take so long for each answer."""
        self._delay = seconds
        return seconds

    def _get(self, vm: str) -> Machine:
        if vm not in self._machines:
            raise Refused("vm_not_found", f"there is no machine {vm}")
        return self._machines[vm]

    def _keep(self) -> None:
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps({name: asdict(one) for name, one in self._machines.items()}), "utf-8")
        written.replace(self._file)
