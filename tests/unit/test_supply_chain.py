"""Whether the lock file is one for this project, and what is made of a report of pip-audit."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tools.supply_chain import HERE, audited, main, misfits, requirements

HASH = "    --hash=sha256:" + "0" * 64
PROJECT: dict[str, Any] = {
    "name": "relevo",
    "dependencies": ["redis>=6.4,<9"],
    "optional-dependencies": {
        "web": ["starlette>=1.3.1", "h11>=0.16"],
        "all": ["relevo[web]"],
        "dev": ["relevo[all]", "PyYAML>=6"],
    },
}
LOCK = "\n".join(
    f"{one} \\\n{HASH}" for one in ("h11==0.16.0", "pyyaml==6.0.3", "redis==8.1.0 ; os", "starlette==1.10.0")
)


def test_the_lock_file_of_this_project_fits_it() -> None:
    assert main(["fits"]) == 0


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("h11==0.16.0", "h11==0.14.0", ["h11 is 0.14.0, and >=0.16 is needed"]),
        ("starlette==1.10.0", "other==1", ["starlette is missing"]),
        ("redis==8.1.0", "redis==9.0", ["redis is 9.0, and <9,>=6.4 is needed"]),
        (f"starlette==1.10.0 \\\n{HASH}", "starlette==1.10.0", ["starlette has no hash"]),
        (
            "h11==",
            "--index-url https://mirror.example/simple\nh11==",
            ["an address: --index-url https://mirror.example/simple"],
        ),
        ("", "", []),
    ],
)
def test_a_lock_file_that_does_not_fit_is_refused_with_the_reason(old: str, new: str, why: list[str]) -> None:
    assert misfits(PROJECT, LOCK.replace(old, new) if old else LOCK) == why


def test_versions_with_known_vulnerabilities_are_not_admitted() -> None:
    """Also where only the lower bounds of what users install are met."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    admitted = {needed.name: needed.specifier for needed in requirements(project, "web")}
    for name, version in (("starlette", "0.49.0"), ("starlette", "1.3.0"), ("h11", "0.15.0")):
        assert not admitted[name].contains(version), f"{name} {version}"


@pytest.mark.parametrize(
    ("packages", "code", "printed"),
    [
        ([{"name": "h11", "version": "0.16.0", "vulns": []}], 0, "1 of 1 packages were looked up, 0 of them"),
        (
            [{"name": "h11", "version": "0.14.0", "vulns": [{"id": "CVE-2025-43859", "fix_versions": ["0.16.0"]}]}],
            1,
            "h11 0.14.0: CVE-2025-43859, mended in 0.16.0",
        ),
        ([{"name": "h11", "skip_reason": "not found"}], 3, "0 of 1 packages were looked up"),
        (None, 3, "nothing was looked up"),
    ],
)
def test_a_report_says_whether_everything_was_looked_up(
    packages: Any, code: int, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip-audit itself ends with "No known vulnerabilities found" where it could look up none."""
    report = tmp_path / "report.json"
    if packages is not None:
        report.write_text(json.dumps({"dependencies": packages}))
    assert audited(report) == code
    assert printed in "".join(capsys.readouterr())
