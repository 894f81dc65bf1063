"""A real Prometheus scrapes a real exporter: all queries have values, and an alert fires."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import CompactionRule, StateStore
from statestore.prometheus import PrometheusListener, serve
from tests.servers.prometheus import prometheus_server
from tests.syntax import ROOT

pytestmark = [pytest.mark.long, pytest.mark.services]

RULES = ROOT / "docs" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "docs" / "grafana" / "dashboard.json"
CONFIG = """
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: statestore
    static_configs: [{{ targets: ["127.0.0.1:{port}"] }}]
"""
SECONDS = 90
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def queries() -> dict[str, str]:
    """Return the queries of the dashboard by panel, with values for Grafana's variables."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return {
        f"{panel['title']}, {target['refId']}": re.sub(
            r"\[\$__\w+\]", "[30s]", target["expr"]
        ).replace("$store", ".+")
        for panel in panels
        for target in panel["targets"]
    }


class Job:
    """Two stores with the exporter's listener; the compaction of the second one always fails."""

    def __init__(self, folder: Path, listener: PrometheusListener) -> None:
        rule = CompactionRule(share=0.01, most_share=9)
        self.works, self.fails = (
            StateStore.open(
                str(folder / name),
                table_format="parquet",
                compaction=compaction,
                listeners=[listener],
            )
            for name, compaction in (("works", None), ("fails", rule))
        )
        rows = pa.table({"k": ["a", "b"], "v": [1, 2]})
        for store in (self.works, self.fails):
            with store.snapshot(parallelism=2) as checkpoint:
                checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=4)
        for file in (folder / "fails").rglob("*.parquet"):
            file.unlink()

    def step(self) -> None:
        """Take a checkpoint of both stores and restore one; one more checkpoint fails."""
        for store in (self.works, self.fails):
            with store.snapshot(parallelism=2) as checkpoint:
                checkpoint.write_changes("u", "s", [{"k": "a", "v": time.time_ns()}])
        self.fails.parts.background.wait()
        self.works.restore(parallelism=2)
        with pytest.raises(ZeroDivisionError), self.works.snapshot(parallelism=2):
            _ = 1 / 0


def asked(address: str, path: str, **fields: str) -> Any:
    with HTTP.open(
        f"{address}/api/v1/{path}?{urllib.parse.urlencode(fields)}", timeout=30
    ) as found:
        answer = json.load(found)
    assert answer["status"] == "success"
    return answer["data"]


def has_value(address: str, query: str) -> bool:
    """Return whether a query has a result that is a number."""
    found = asked(address, "query", query=query)["result"]
    return any(math.isfinite(float(one["value"][1])) for one in found)


def until(job: Job, is_done: Callable[[], bool], shown: Callable[[], object]) -> None:
    """Work until something is so; if it takes too long, fail and show what there is instead."""
    deadline = time.monotonic() + SECONDS
    while not is_done():
        assert time.monotonic() < deadline, shown()
        job.step()
        time.sleep(0.5)


def test_all_queries_have_values_and_a_failure_is_reported(tmp_path: Path) -> None:
    with serve(0) as serving:
        config = CONFIG.format(rules=RULES, port=serving.port)
        job = Job(tmp_path, serving.listener)
        with prometheus_server(tmp_path, config) as address:
            missing = queries()

            def has_all() -> bool:
                for place, query in [*missing.items()]:
                    if has_value(address, query):
                        del missing[place]
                return not missing

            until(job, has_all, lambda: f"no value: {missing}")
            fired = {"StatestoreCheckpointFailed", "StatestoreCompactionFailed"}
            until(job, lambda: firing(address) == fired, lambda: firing(address))
            assert stores(address, "StatestoreCheckpointFailed") == {job.works.url}
            assert stores(address, "StatestoreCompactionFailed") == {job.fails.url}
            [group] = asked(address, "rules")["groups"]
            assert {rule["health"] for rule in group["rules"]} == {"ok"}
            listed = asked(address, "label/store/values", **{"match[]": "statestore_named_bytes"})
            assert listed == sorted([job.works.url, job.fails.url])


def firing(address: str) -> set[str]:
    alerts = asked(address, "alerts")["alerts"]
    return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


def stores(address: str, alert: str) -> set[str]:
    alerts = asked(address, "alerts")["alerts"]
    return {one["labels"]["store"] for one in alerts if one["labels"]["alertname"] == alert}
