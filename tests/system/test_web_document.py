"""The OpenAPI document describes the API: schemathesis sends valid and invalid requests to every route."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_origin

import pytest

from relevo.web.access import Role
from relevo.web.openapi import document
from relevo.web.table import ROUTES
from tests.servers import Server
from tests.system.shell import environment
from tests.system.web import SECRETS, TOKENS, Filled, Here, alone, emptied, served

#: Many requests of each kind for every route, or a few.
IS_CHAOS = os.environ.get("RELEVO_CHAOS") == "1"
THOROUGH = ("-n", "20", "--phases", "coverage,fuzzing")
BRIEF = ("-n", "2", "--phases", "fuzzing")
#: How schemathesis sends lines of JSON, which it does not know.
LINES = """
import schemathesis

@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    return str(value).encode(errors="replace")
"""
#: Another name for a path, with the same code behind it.
SAME = "/queue/dlq"


def test_every_list_is_a_page() -> None:
    bare = [route.path for route in ROUTES if not route.changes and get_origin(route.answers) is list]
    assert bare == []


def test_every_route_is_described_once() -> None:
    made = document(ROUTES)
    found = [(method.upper(), path) for path, methods in made["paths"].items() for method in methods]
    assert sorted(found) == sorted((route.method, route.path) for route in ROUTES)
    ids = Counter(one["operationId"] for methods in made["paths"].values() for one in methods.values())
    assert max(ids.values()) == 1
    deeds = Counter(route.deed for route in ROUTES if route.changes and not route.creates)
    assert max(deeds.values()) == 1, "two routes would be one in the audit trail"


def test_description_has_summary_role_and_answers() -> None:
    paths = document(ROUTES)["paths"]
    for route in ROUTES:
        made = paths[route.path][route.method.lower()]
        assert made["summary"] and made["summary"][0].isupper(), route.path
        assert (f"role {route.role.label}" in made["description"]) is (route.role > Role.VIEWER), route.path
        assert {"200", "401", "403", "503"} <= set(made["responses"]), route.path
        assert ("201" in made["responses"]) is route.creates, route.path
        assert [one["name"] for one in made["parameters"] if one["in"] == "path"] == route.names


@pytest.mark.slow
@pytest.mark.timeout(3600 if IS_CHAOS else 300)
def test_every_route_answers_as_the_document_says(server: Server, tmp_path: Path) -> None:
    """All checks of schemathesis but two.

    What has the right form may still be refused, with 422 and a reason; and answers to wrong tokens, of which one check
    sends hundreds, are delayed more and more (tests/system/test_web_gate.py asks every route with them).
    """
    with alone(server, web_tokens=TOKENS) as app, emptied(app) as data, served(app) as url:
        with Here(url, "viewer") as here:
            made = with_real_names(here.ask("/openapi.json"), data)
        (tmp_path / "openapi.json").write_text(json.dumps(made))
        (tmp_path / "lines.py").write_text(LINES)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", f"{url}/api/v1"),
                *("-H", f"Authorization: Bearer {SECRETS['admin']}", *(THOROUGH if IS_CHAOS else BRIEF)),
                *("--exclude-checks", "positive_data_acceptance,ignored_auth", "--continue-on-failure", "--no-shrink"),
                *("--seed", "7", "--exclude-path", SAME),
            ],
            cwd=tmp_path,
            env=environment(None, SCHEMATHESIS_HOOKS="lines", PYTHONPATH=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=3600 if IS_CHAOS else 250,
        )
        assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
        assert f"Tested: {len(ROUTES) - 1}" in done.stdout
        assert {deed.via for deed in app.audit.list()} == {"http"}


def with_real_names(made: dict[str, Any], data: Filled) -> dict[str, Any]:
    """The document, with names in paths of what there is: else every answer would be 404."""
    known = {
        "queue": ["default", "embedding:actions"],
        "id": [data.ready, data.done, data.dead, data.flow],
        "name": ["nightly"],
        "service": ["embedding"],
        "operation": ["task_7"],
        "pool": ["vms"],
        "entity": ["vm-1", "vm-2"],
    }
    for methods in made["paths"].values():
        for one in methods.values():
            for parameter in one["parameters"]:
                if parameter["in"] == "path" and parameter["name"] in known:
                    parameter["schema"] = {"enum": known[parameter["name"]]}
    made["paths"]["/tasks/{task}/jobs"]["post"]["parameters"][0]["schema"] = {"enum": ["double", "report"]}
    # Not where the others look: one that is called 0 would make a wrong name in a path a right one.
    made["paths"]["/pools/{pool}/items"]["post"]["parameters"][0]["schema"] = {"enum": ["racks"]}
    return made
