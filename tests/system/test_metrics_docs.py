"""What is told of metrics is so: the table of the page, the rules, the dashboard."""

from __future__ import annotations

import json
import re
from pathlib import Path

from relevo.metrics.families import CATALOGUE
from relevo.metrics.timings import BOUNDS
from tests.system.test_docs import rows, section

ROOT = Path(__file__).parents[2]


def documented() -> dict[str, list[str]]:
    return {row[0].strip("`"): row for row in rows(section("docs/metrics.md", "Names"))}


def test_every_metric_is_documented_with_its_kind_and_labels() -> None:
    told = documented()
    assert set(told) == set(CATALOGUE)
    for name, (kind, labels, _) in CATALOGUE.items():
        assert told[name][1] == kind, name
        assert re.findall(r"`(\w+)`", told[name][2]) == list(labels), name


def test_names_follow_the_rules_of_prometheus() -> None:
    for name, (kind, labels, meaning) in CATALOGUE.items():
        assert re.fullmatch(r"relevo(_[a-z]+)+", name), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert kind != "histogram" or name.endswith("_seconds"), name
        assert "milli" not in name and not {"le", "instance", "job"} & set(labels)
        assert meaning.endswith("."), name


def metrics_named_in(text: str) -> set[str]:
    return {re.sub("_(bucket|sum|count)$", "", name) for name in re.findall(r"\brelevo_[a-z_]+", text)}


def test_every_seed_metric_has_its_match() -> None:
    table = rows(section("docs/metrics.md", "Names of VMPooler"))
    assert [row[0].strip("`") for row in table] == [
        "dlq.pending.size",
        "dlq.clone.size",
        "dlq.ready.size",
        "dlq.tasks.size",
        "purge.pending.count",
        "purge.ready.count",
        "purge.completed.count",
        "purge.orphaned.count",
        "health.status",
        "health.stuck_vms.count",
        "health.queue.<name>.size",
        "health.queue.<name>.oldest_age",
    ]
    assert all(metrics_named_in(row[1]) for row in table)


def test_documents_name_no_metric_that_does_not_exist() -> None:
    text = (ROOT / "docs/metrics.md").read_text("utf-8")
    assert metrics_named_in(text) <= set(CATALOGUE)


def test_every_query_of_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    board = json.loads((ROOT / "deploy/grafana.json").read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    queries += [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    assert len(queries) > 15
    known = set(CATALOGUE)
    labels = {label for _, some, _ in CATALOGUE.values() for label in some} | {"le"}
    for query in queries:
        named = metrics_named_in(query)
        assert named and named <= known, query
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
        for some in re.findall(r"\bby\s*\(([^)]*)\)", query):
            used |= {label.strip() for label in some.split(",")}
        assert used <= labels, f"{query}: {used - labels}"


def filtered_by(query: str) -> dict[str, dict[str, str]]:
    """Each metric of a query, and which of its labels must be like what."""
    found = re.findall(r"\b(relevo_[a-z_]+)(?:\{([^}]*)\})?", query)
    return {name: dict(re.findall(r'(\w+)=~"([^"]*)"', inside)) for name, inside in found}


def test_every_query_of_the_dashboard_honours_every_variable() -> None:
    board = json.loads((ROOT / "deploy/grafana.json").read_text("utf-8"))
    variables = [one for one in board["templating"]["list"] if one["type"] == "query"]
    assert [one["name"] for one in variables] == ["app", "queue"]
    asked = [(target["expr"], {"app", "queue"}) for panel in board["panels"] for target in panel.get("targets", [])]
    for i, one in enumerate(variables):  # what is offered goes by what was chosen before
        assert one["definition"] == one["query"]["query"]
        asked.append((one["query"]["query"], {before["name"] for before in variables[:i]}))
    for query, chosen in asked:
        for metric, filters in filtered_by(query).items():
            labels = set(CATALOGUE[re.sub("_(bucket|sum|count)$", "", metric)][1])
            # Queues of the bus are those of all apps, and have no app.
            wanted = {"app": "$app|" if "queue" in labels else "$app", "queue": "$queue"}
            assert filters == {name: wanted[name] for name in chosen & labels}, query


def test_the_dashboard_is_whole() -> None:
    board = json.loads((ROOT / "deploy/grafana.json").read_text("utf-8"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["title"] and panel["gridPos"]["w"] <= 24 for panel in board["panels"])
    assert all(panel["type"] == "row" or panel["description"] for panel in board["panels"])


def test_the_page_says_which_bounds_there_are() -> None:
    text = " ".join((ROOT / "docs/metrics.md").read_text("utf-8").split())
    told = "1, 5, 10, 25, 50, 100, 250, 500 ms, 1, 2.5, 5, 10, 30 s, 1, 5, 10 min, 1 h"
    assert told in text
    units = {"ms": 0.001, "s": 1, "min": 60, "h": 3600}
    found, waiting = [], list[float]()
    for word in told.split(", "):
        number, _, unit = word.partition(" ")
        waiting.append(float(number))
        if unit:
            found += [one * units[unit] for one in waiting]
            waiting = []
    assert found == list(BOUNDS)
