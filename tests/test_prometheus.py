"""Metrics as Prometheus sees them: scraped over HTTP from the endpoint of its own client."""

from __future__ import annotations

import math
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from statestore import CompactionRule, StateStore
from statestore.prometheus import PrometheusListener

ROWS = pa.table({"k": ["a", "b"], "v": [1, 2]})
Scrape = Callable[[], dict[tuple[str, str], float]]


@pytest.fixture
def listener() -> Iterator[tuple[PrometheusListener, Scrape]]:
    """A listener, and what an endpoint of its registry says: value by name and labels, but the
    store.
    """
    registry = CollectorRegistry()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)

    def scrape() -> dict[tuple[str, str], float]:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {
                (
                    sample.name.removeprefix("statestore_"),
                    ",".join(v for k, v in sorted(sample.labels.items()) if k != "store"),
                ): sample.value
                for family in families
                for sample in family.samples
                if sample.labels["store"]
            }

    yield PrometheusListener(registry), scrape
    server.shutdown()
    server.server_close()
    thread.join()


def take(store: StateStore, changes: list[dict[str, object]] | None = None) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        if changes is None:
            checkpoint.write_keyed("u", "s", ROWS, key="k", max_parallelism=4)
        else:
            checkpoint.write_changes("u", "s", changes, key="k", max_parallelism=4)


@pytest.mark.slow
def test_an_endpoint_tells_what_the_manifests_do(
    tmp_path: Path, listener: tuple[PrometheusListener, Scrape]
) -> None:
    heard, scrape = listener
    store = StateStore.open(
        str(tmp_path),
        table_format="parquet",
        layout="partitioned",
        listeners=[heard],
        compaction=None,
    )
    assert scrape() == {}
    take(store)
    take(store, [{"k": "a", "v": 5}])
    with pytest.raises(ZeroDivisionError), store.snapshot(parallelism=2):
        _ = 1 / 0
    store.restore(parallelism=2)
    found = scrape()
    first, second = store.checkpoint(1).manifest, store.checkpoint(2).manifest
    assert second.metrics is not None
    assert found["checkpoints_total", "committed"] == 2
    assert found["checkpoints_total", "failed"] == 1
    assert found["written_rows_total", "states"] == 3
    assert found["written_bytes_total", "states"] == second.size_bytes
    assert found["written_files_total", "states"] == second.files
    assert found["written_rows_total", "compaction"] == 0
    assert found["changed_share", ""] == 0.5
    assert found["last_checkpoint_id", ""] == 2
    assert found["last_checkpoint_timestamp_seconds", ""] == second.created_at_ms / 1000
    assert (found["named_bytes", ""], found["named_files", ""]) == (
        second.size_bytes,
        second.files,
    )
    assert found["named_files", ""] > first.files
    assert found["restore_seconds_count", ""] == 1
    assert found["restore_bytes_total", ""] == store.plan(parallelism=2).size_bytes
    for phase in ("begin", "write", "compaction", "wait", "check", "publish", "put", "all"):
        assert found["checkpoint_seconds_count", phase] == 2
    whole = found["checkpoint_seconds_sum", "all"]
    assert sum(found["checkpoint_seconds_sum", name] for name in ("begin", "write")) <= whole


@pytest.mark.slow
def test_without_a_base_the_changed_share_is_not_a_number(
    tmp_path: Path, listener: tuple[PrometheusListener, Scrape]
) -> None:
    heard, scrape = listener
    store = StateStore.open(str(tmp_path), table_format="parquet", listeners=[heard])
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_broadcast("u", "rules", [{"rule": 1}])
    assert math.isnan(scrape()["changed_share", ""])


@pytest.mark.slow
def test_a_failed_compaction_is_counted(
    tmp_path: Path, listener: tuple[PrometheusListener, Scrape]
) -> None:
    metrics, scrape = listener
    rule = CompactionRule(share=0.01, most_share=9)
    store = StateStore.open(
        str(tmp_path / "s"), table_format="parquet", compaction=rule, listeners=[metrics]
    )
    take(store)
    for path in (tmp_path / "s").rglob("*.parquet"):
        path.unlink()
    take(store, [{"k": "a", "v": 3}])
    store.parts.background.wait()
    found = scrape()
    assert found["failed_compactions_total", ""] == 1
    assert found["checkpoints_total", "committed"] == 2


def test_two_stores_of_one_listener_are_told_apart_by_their_url(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    listener = PrometheusListener(registry)
    stores = [
        StateStore.open(str(tmp_path / name), table_format="parquet", listeners=[listener])
        for name in "ab"
    ]
    for number, store in enumerate(stores, 1):
        for _ in range(number):
            take(store)
    values = [
        registry.get_sample_value("statestore_last_checkpoint_id", {"store": store.url})
        for store in stores
    ]
    assert values == [1, 2]


def test_without_the_client_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import statestore\n"
        "try:\n"
        "    import statestore.prometheus\n"
        "except statestore.errors.MissingDependencyError as error:\n"
        "    print(error, error.exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "install the extra 'metrics': " in done.stdout
    assert done.stdout.endswith("16\n")


def test_importing_statestore_does_not_load_the_client() -> None:
    code = "import sys, statestore; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
