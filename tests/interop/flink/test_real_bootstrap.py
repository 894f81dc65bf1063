"""Real Flink starts from savepoints made of tables, and continues as if it had had all events.

The state after the first events is computed in Python, and each state becomes a table. A job that
starts from them and reads the other events must say of these what a job says that read all events,
and must end with the same state.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.interop.flink import export_savepoint, open_savepoint
from tests.interop.flink.boot_tables import (
    make_deeds,
    target_of,
    write_deeds,
    write_tables,
)
from tests.interop.flink.test_real_flink import HEAP, NEWEST, OLDER, ROCKSDB, read
from tests.servers.flink import Flink

pytestmark = pytest.mark.flink
COUNT, FIRST = 160, 90
COUNTERS = ("by_class", "by_tuple", "by_row", "by_int", "by_day")


@dataclass(frozen=True)
class Outcome:
    """What a job said of the last events, by query, and the state with which it ended."""

    said: dict[str, Counter[str]]
    state: dict[tuple[str, str], Counter[str]]


@pytest.fixture(
    scope="module",
    params=[
        (NEWEST, HEAP),
        pytest.param((NEWEST, ROCKSDB), marks=pytest.mark.long),
        pytest.param((OLDER, HEAP), marks=pytest.mark.long),
        pytest.param((OLDER, ROCKSDB), marks=pytest.mark.long),
    ],
    ids=lambda param: f"{param[0]}-{param[1]['state.backend.type']}",
)
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Outcome, Outcome]:
    """Return the outcome of a job over all events, and of one that starts from tables."""
    version, backend = request.param
    folder = tmp_path_factory.mktemp("boot")
    deeds = make_deeds(COUNT)
    write_deeds(deeds, folder / "deeds.tsv")
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    write_tables(store, deeds[:FIRST], version)
    export_savepoint(store, str(folder / "tables"), target=target_of(version))
    step = {
        **backend,
        "do": "savepoint",
        "format": "CANONICAL",
        "table": str(folder / "deeds.tsv"),
        "events": str(COUNT),
        "parallelism": "2",
        "collections": str(version == NEWEST).lower(),
    }
    whole = {"to": str(folder / "whole"), "results": str(folder / "whole.jsonl")}
    rest = {"to": str(folder / "rest"), "results": str(folder / "rest.jsonl")}
    rest |= {"from": str(folder / "tables"), "after": str(FIRST)}
    ends = Flink(version, main="golden.Boot").run([step | whole, step | rest])
    results = (read(Path(done["results"])) for done in (whole, rest))
    first, second = (
        Outcome(_said(rows), dict(_state(end))) for rows, end in zip(results, ends, strict=True)
    )
    return first, second


def _said(rows: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for row in rows:
        number, *fields = row["result"]["row"]["row"]
        if number >= FIRST:
            query = found.setdefault(row["result"]["query"], Counter())
            query[json.dumps([number, *fields])] += row["times"]
    return found


def _state(savepoint: str) -> Iterator[tuple[tuple[str, str], Counter[str]]]:
    """Yield the keyed and operator states of a savepoint, as comparable rows."""
    for operator in open_savepoint(savepoint).operators:
        title = operator.title
        for state in operator.states:
            found: Counter[str] = Counter()
            for part in operator.rows(state.name):
                columns = (part.key, part.map_key, part.value, part.time)
                known = [column.to_pylist() for column in columns if column is not None]
                rows = (_sorted(row, state.name) for row in zip(*known, strict=True))
                found.update(repr((part.key_group, row)) for row in rows)
            yield (title, state.name), found
        lists: dict[str, Counter[str]] = {}
        for elements in operator.operator_state():
            values = Counter(map(repr, elements.values().to_pylist()))
            own = lists.setdefault(elements.info.name, Counter())
            if elements.info.mode == "broadcast":
                own |= values
            else:
                own += values
        for name, values in lists.items():
            if name != "SourceReaderState":
                yield (title, name), values


def _sorted(value: Any, name: str) -> Any:
    """Return a value with its maps and sets in an order that does not depend on the JVM."""
    if isinstance(value, dict):
        return {field: _sorted(item, field) for field, item in value.items()}
    is_map = isinstance(value, list) and any(isinstance(item, tuple) for item in value)
    if is_map or (name == "sizes" and value is not None):
        return sorted(value, key=repr)
    return tuple(_sorted(item, name) for item in value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("query", ["accounts", "values", *COUNTERS, "services"])
def test_a_job_continues_from_tables_with_keyed_state(
    query: str, outcomes: tuple[Outcome, Outcome]
) -> None:
    """Values, lists, maps, reducing and aggregating state, keys of each type, and timers."""
    whole, rest = outcomes
    assert sum(whole.said[query].values()) >= COUNT - FIRST
    assert rest.said[query] == whole.said[query]


def test_classes_with_collections_are_those_of_flink_2(outcomes: tuple[Outcome, Outcome]) -> None:
    whole, rest = outcomes
    is_newest = ("accounts", "basket") in whole.state
    assert sum(whole.said.get("basket", Counter()).values()) == (COUNT - FIRST) * is_newest
    assert rest.said.get("basket") == whole.said.get("basket")


@pytest.mark.parametrize("query", ["rules", "log"])
def test_a_job_continues_from_tables_with_operator_state(
    query: str, outcomes: tuple[Outcome, Outcome]
) -> None:
    """Broadcast state is there in each subtask, and union state is complete in one."""
    whole, rest = outcomes
    assert sum(whole.said[query].values()) == COUNT - FIRST
    assert rest.said[query] == whole.said[query]


def test_both_jobs_end_with_the_same_state(outcomes: tuple[Outcome, Outcome]) -> None:
    """Key groups included, and the timers that have not fired."""
    whole, rest = outcomes
    assert {*whole.state} == {*rest.state}
    assert len(whole.state) > 30
    for name, rows in whole.state.items():
        assert rest.state[name] == rows, name
