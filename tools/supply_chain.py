"""The packages that development uses: whether dev.lock fits pyproject.toml, and what pip-audit found in it.

python -m tools.supply_chain fits              exit code 1: it does not fit
python -m tools.supply_chain audited FILE      exit code 1: something is vulnerable; 3: not everything was looked up
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parents[1]
NOT_LOOKED_UP = 3


class Locked(NamedTuple):
    """A package in the lock file."""

    version: str
    hashes: int


def locked(text: str) -> dict[str, Locked]:
    """The packages of a lock file: blocks of `name==version` with the hashes of its files."""
    found: dict[str, Locked] = {}
    for block in re.split(r"\n(?=\S)", text):
        if head := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", block):
            found[canonicalize_name(head[1])] = Locked(head[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", block)))
    return found


def requirements(project: dict[str, Any], extra: str = "dev") -> Iterator[Requirement]:
    """What an extra needs, with what the project always needs."""
    yield from map(Requirement, project["dependencies"])
    yield from _of_extra(project, extra)


def _of_extra(project: dict[str, Any], extra: str) -> Iterator[Requirement]:
    for needed in map(Requirement, project["optional-dependencies"][extra]):
        if canonicalize_name(needed.name) == project["name"]:
            for other in needed.extras:
                yield from _of_extra(project, other)
        else:
            yield needed


def misfits(project: dict[str, Any], text: str) -> list[str]:
    """Why a lock file does not fit a project; nothing: it does."""
    packages = locked(text)
    lines = text.splitlines()
    found = [f"an address: {line.strip()}" for line in lines if "://" in line or line.startswith(("-", "git+"))]
    for needed in requirements(project):
        package = packages.get(canonicalize_name(needed.name))
        if package is None:
            found.append(f"{needed.name} is missing")
        elif not needed.specifier.contains(package.version, prereleases=True):
            found.append(f"{needed.name} is {package.version}, and {needed.specifier} is needed")
    return found + [f"{name} has no hash" for name, package in packages.items() if not package.hashes]


def audited(report: Path) -> int:
    """Print what pip-audit found, and give the exit code."""
    if not report.exists() or not report.stat().st_size:
        print("nothing was looked up: the database of vulnerabilities cannot be reached from here", file=sys.stderr)
        return NOT_LOOKED_UP
    packages = msgspec.json.decode(report.read_bytes())["dependencies"]
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    vulnerable = [one for one in packages if one.get("vulns")]
    for one in vulnerable:
        for vuln in one["vulns"]:
            fixed = ", ".join(vuln["fix_versions"]) or "no version"
            print(f"{one['name']} {one['version']}: {vuln['id']}, mended in {fixed}")
    looked_up = len(packages) - len(skipped)
    counted = f"{looked_up} of {len(packages)} packages were looked up, {len(vulnerable)} of them are vulnerable"
    print(counted, file=sys.stderr)
    if skipped:
        few = ", ".join(skipped[:5]) + (", …" if len(skipped) > 5 else "")
        print(f"the database does not have {few}: is the index a mirror?", file=sys.stderr)
    return 1 if vulnerable else NOT_LOOKED_UP if skipped else 0


def main(arguments: list[str]) -> int:
    """Do what is asked."""
    if arguments[0] == "audited":
        return audited(Path(arguments[1]))
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    found = misfits(project, (HERE / "dev.lock").read_text())
    for why in found:
        print(f"dev.lock: {why}", file=sys.stderr)
    if found:
        print("dev.lock does not fit pyproject.toml: run ./dev lock", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
