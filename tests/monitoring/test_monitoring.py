"""The alert rules and the dashboard use what the exporter renders, and what their owners accept."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from statestore import CompactionRule, StateStore
from statestore.cli.main import cli
from statestore.prometheus import PrometheusListener
from tests.servers.grafana_schema import type_errors
from tests.servers.prometheus import run_promtool
from tests.syntax import ROOT

HERE = Path(__file__).parent
RULES = ROOT / "docs" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "docs" / "grafana" / "dashboard.json"
METRIC = re.compile(r"\bstatestore_[a-z_]+")
MATCHER = re.compile(r'\b(\w+)(=~|!~|!=|=)"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on|without|ignoring) \(([^)]*)\)")
ROWS = pa.table({"k": ["a", "b"], "v": [1, 2]})


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Yield the place and text of each query of the dashboard."""
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']}, {target['refId']}", target["expr"]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    yield from queries()


EXPRESSIONS = dict(expressions())


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of the exporter after each of its events."""
    path = tmp_path_factory.mktemp("monitoring") / "s"
    registry = CollectorRegistry()
    store = StateStore.open(
        str(path),
        table_format="parquet",
        compaction=CompactionRule(share=0.01, most_share=9),
        listeners=[PrometheusListener(registry)],
    )
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", ROWS, key="k", max_parallelism=4)
    with pytest.raises(ZeroDivisionError), store.snapshot(parallelism=2):
        _ = 1 / 0
    store.restore(parallelism=2)
    for file in path.rglob("*.parquet"):
        file.unlink()
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", [{"k": "a", "v": 5}])
    store.parts.background.wait()
    return generate_latest(registry).decode()


@pytest.fixture(scope="module")
def samples(rendered: str) -> dict[str, list[dict[str, str]]]:
    """The labels of each sample, by metric."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(rendered):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_each_metric_and_label_is_one_of_the_exporter(
    place: str, samples: dict[str, list[dict[str, str]]]
) -> None:
    text = EXPRESSIONS[place]
    names = set(METRIC.findall(text))
    assert names
    assert names <= samples.keys()
    labels = [labels for name in names for labels in samples[name]]
    for name, operator, value in MATCHER.findall(text):
        values = {own[name] for own in labels if name in own}
        assert values
        if value != "$store":
            wanted = value.split("|") if "~" in operator else [value]
            assert values >= set(wanted)
    for group in GROUPING.findall(text):
        for name in group.split(", "):
            assert any(name in own for own in labels)


def test_the_store_variable_lists_the_stores(samples: dict[str, list[dict[str, str]]]) -> None:
    source, store = dashboard()["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == (
        *("datasource", "datasource", "prometheus"),
    )
    (found,) = re.findall(r"label_values\((\w+), (\w+)\)", store["query"]["query"])
    metric, label = found
    assert all(label in own for own in samples[metric])


def test_each_metric_of_the_exporter_is_on_the_dashboard(
    samples: dict[str, list[dict[str, str]]],
) -> None:
    """Except when a counter or histogram was created."""
    shown = {name for _, text in queries() for name in METRIC.findall(text)}
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    known = {
        re.sub("_(bucket|sum|count)$", "", name)
        for name in samples
        if not name.endswith("_created")
    }
    assert shown == known


def test_the_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    panels = dashboard()["panels"]
    for key in ("id", "title"):
        values = [panel[key] for panel in panels]
        assert len(set(values)) == len(values)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        targets = panel["targets"]
        assert len({target["refId"] for target in targets}) == len(targets)
        assert {target["datasource"]["uid"] for target in targets} == {"${datasource}"}
        assert panel["description"].endswith(".")


def test_alerts_name_existing_commands() -> None:
    known = cli.list_commands(click.Context(cli))
    for rule in rules():
        notes = rule["annotations"]
        assert notes.keys() == {"summary", "description"}
        named = re.findall(r"'statestore (\S+) ", notes["description"])
        assert set(named) <= set(known)
    described = " ".join(rule["annotations"]["description"] for rule in rules())
    assert "'statestore trend " in described


def test_each_alert_has_a_test() -> None:
    text = (HERE / "alerts_test.yml").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in rules() if rule["alert"] not in text] == []


def promtool(*arguments: str, folder: Path, text: str = "") -> str:
    done = run_promtool(*arguments, folder=folder, text=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_promtool_accepts_the_rules_and_metrics(rendered: str) -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(RULES), folder=HERE)
    promtool("check", "metrics", folder=HERE, text=rendered)


@pytest.mark.long
def test_each_alert_fires_when_it_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", folder=HERE)


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("> 900", "> 9000"),
        ("[6h]", "[5m]"),
        ('unless statestore_checkpoints_total{outcome="failed"} offset', "unless up offset"),
        (" > 60\n", " > 600\n"),
        ("> 2 *", "> 4 *"),
        ("7 * 86400", "1 * 86400"),
    ],
)
def test_the_tests_of_alerts_find_a_changed_rule(old: str, new: str, tmp_path: Path) -> None:
    text = RULES.read_text(encoding="utf-8")
    assert old in text
    for path in (RULES, HERE / "alerts_test.yml"):
        copied = tmp_path / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True)
        copied.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", "alerts_test.yml", folder=tmp_path / "tests" / "monitoring")


@pytest.mark.long
def test_promtool_parses_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """As rules, with values in place of Grafana's variables."""
    recorded = [
        {
            "record": f"query_{number}",
            "expr": re.sub(r"\[\$__\w+\]", "[5m]", text).replace("$store", ".+"),
        }
        for number, (_, text) in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))
    shown = promtool("check", "rules", str(path), folder=tmp_path)
    assert f"{len(recorded)} rules found" in shown


@pytest.mark.long
def test_the_dashboard_fits_the_types_of_grafana(tmp_path: Path) -> None:
    assert type_errors(dashboard(), tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda board: board.update(titel="x"), "'\"titel\"' does not exist"),
        (lambda board: board.pop("schemaVersion"), "'schemaVersion' is missing"),
        (lambda board: board["panels"][0]["gridPos"].update(w="6"), "not assignable to type"),
        (lambda board: board["panels"][0]["options"].pop("reduceOptions"), "'reduceOptions'"),
        (
            lambda board: board["panels"][5]["options"]["legend"].update(placement="left"),
            "LegendPlacement",
        ),
        (
            lambda board: board["panels"][5]["fieldConfig"]["defaults"]["custom"].update(
                drawStyle="dots"
            ),
            '"line" | "bars" | "points"',
        ),
    ],
)
def test_the_types_of_grafana_find_a_damaged_dashboard(
    damage: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    board = copy.deepcopy(dashboard())
    damage(board)
    (error,) = type_errors(board, tmp_path)
    assert message in error
