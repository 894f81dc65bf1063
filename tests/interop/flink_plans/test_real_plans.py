"""Real Flink: a compiled plan starts from a savepoint that was made of tables, and continues.

The tables are computed by DuckDB from the first events. Flink runs the plan three times: over all
events, over the first events, and from the savepoint over the rest. What it prints for the first
events and for the rest is what it prints for all events: each change, or, if the changes depend on
which side of a join arrives first, the result.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from statestore.interop.flink import export_savepoint
from statestore.interop.flink_plans import FlinkPlan, bootstrap_flink_state, read_flink_plan
from statestore.store import StateStore
from tests.interop.flink.goldens import FOLDER
from tests.servers.flink import VERSIONS, Flink

pytestmark = pytest.mark.flink
NEWEST, OLDER = VERSIONS
ALL, FIRST = 240, 140

SOURCES = {
    "events": (
        "id BIGINT NOT NULL, user_id STRING, shop INT, amount DECIMAL(10, 2), price DOUBLE, "
        "note STRING, occurred TIMESTAMP(3), big DECIMAL(30, 2), exact TIMESTAMP(6), "
        "arrival AS PROCTIME(), "
        "WATERMARK FOR occurred AS occurred"
    ),
    "customers": "user_id STRING NOT NULL, city STRING, PRIMARY KEY (user_id) NOT ENFORCED",
    "visits": "user_id STRING NOT NULL, page STRING, PRIMARY KEY (user_id) NOT ENFORCED",
}


@dataclass(frozen=True)
class Query:
    """A query, the columns of its sink, and the tables of its states, by SQL of DuckDB.

    The states are in the order of the plan. ``{columns}`` are the columns of the plan's state.
    """

    sink: str
    sql: str
    tables: tuple[str, ...]
    is_exact: bool = True


TOP = "(SELECT *, ROW_NUMBER() OVER (PARTITION BY {} ORDER BY {}) AS place FROM events)"
BY_AMOUNT = "amount DESC NULLS LAST, id"
BY_AMOUNT_AND_PRICE = "amount DESC NULLS LAST, price NULLS FIRST, id"
SIDE = "SELECT {columns}, count(*)::INT AS row_count FROM %s GROUP BY ALL"
MATCHED = (
    "SELECT {columns}, count(*)::INT AS row_count, any_value((SELECT count(*) FROM %s b WHERE %s))"
    "::INT AS match_count FROM %s a GROUP BY ALL"
)
UNIQUE = "SELECT {columns} FROM %s"
COUNTED = "SELECT {columns}, (SELECT count(*) FROM %s b WHERE %s)::INT AS match_count FROM %s a"

USERS = (
    "SELECT {}MAX(note) AS place, COUNT(*) AS n, MAX(big) AS most, MAX(exact) AS latest "
    "FROM events GROUP BY user_id"
)
"""Rows that are retracted and have no unique key, with nulls of types longer than a word."""

GROUPED = {
    "totals": Query(
        "user_id STRING, n BIGINT, amount DECIMAL(38, 2), low DOUBLE, high STRING, mean DOUBLE, "
        "notes BIGINT, shops INT",
        "SELECT user_id, COUNT(*) AS n, SUM(amount) AS amount, MIN(price) AS low, MAX(note) AS "
        "high, AVG(price) AS mean, COUNT(note) AS notes, AVG(shop) AS shops FROM events GROUP BY "
        "user_id",
        (
            (
                "SELECT user_id, count(*) AS n, sum(amount)::DECIMAL(38, 2) AS amount, min(price) "
                "AS low, max(note) AS high, coalesce(sum(price), 0) AS mean_sum, count(price) AS "
                "mean_count, count(note) AS notes, coalesce(sum(shop), 0)::BIGINT AS shops_sum, "
                "count(shop) AS shops_count FROM events GROUP BY user_id"
            ),
        ),
    ),
    "sizes": Query(
        "n BIGINT, users BIGINT, highest BIGINT",
        "SELECT n, COUNT(*) AS users, SUM(bonus) AS highest FROM (SELECT user_id, COUNT(*) AS n, "
        "SUM(shop) AS bonus FROM events GROUP BY user_id) GROUP BY n",
        (
            "SELECT user_id, count(*) AS n, sum(shop)::INT AS bonus FROM events GROUP BY user_id",
            (
                "SELECT n, count(*) AS users, sum(bonus)::INT AS highest, count(bonus) AS "
                "highest_count FROM (SELECT user_id, count(*) AS n, sum(shop) AS bonus FROM events "
                "GROUP BY user_id) GROUP BY n"
            ),
        ),
        is_exact=False,
    ),
    "everything": Query(
        "n BIGINT, amount DECIMAL(38, 2)",
        "SELECT COUNT(*) AS n, SUM(amount) AS amount FROM events",
        ("SELECT count(*) AS n, sum(amount)::DECIMAL(38, 2) AS amount FROM events",),
    ),
    "pairs": Query(
        "user_id STRING, shop INT",
        "SELECT DISTINCT user_id, shop FROM events",
        ("SELECT DISTINCT user_id, shop FROM events",),
    ),
    "firsts": Query(
        "id BIGINT, user_id STRING",
        f"SELECT id, user_id FROM {TOP.format('user_id', 'arrival ASC')} WHERE place = 1",
        ("SELECT DISTINCT user_id FROM events",),
    ),
    "lasts": Query(
        "id BIGINT, user_id STRING, note STRING",
        f"SELECT id, user_id, note FROM {TOP.format('user_id', 'arrival DESC')} WHERE place = 1",
        (f"SELECT {{columns}} FROM {TOP.format('user_id', 'id DESC')} WHERE place = 1",),
    ),
    "newest": Query(
        "id BIGINT, user_id STRING, occurred TIMESTAMP(3)",
        f"SELECT id, user_id, occurred FROM {TOP.format('user_id', 'occurred DESC')} WHERE "
        "place = 1",
        (f"SELECT {{columns}} FROM {TOP.format('user_id', 'id DESC')} WHERE place = 1",),
    ),
    "best": Query(
        "shop INT, id BIGINT, amount DECIMAL(10, 2), place BIGINT",
        f"SELECT shop, id, amount, place FROM {TOP.format('shop', 'amount DESC')} WHERE place <= 3",
        (
            (
                "SELECT {columns}, row_number() OVER (PARTITION BY shop, amount ORDER BY id) - 1 "
                f"AS position FROM {TOP.format('shop', BY_AMOUNT)} WHERE place <= 3"
            ),
        ),
    ),
    "top": Query(
        "shop INT, id BIGINT, amount DECIMAL(10, 2)",
        f"SELECT shop, id, amount FROM {TOP.format('shop', 'amount DESC, price')} WHERE place = 1",
        ((f"SELECT {{columns}} FROM {TOP.format('shop', BY_AMOUNT_AND_PRICE)} WHERE place = 1"),),
    ),
    "early": Query(
        "user_id STRING, id BIGINT",
        f"SELECT user_id, id FROM {TOP.format('user_id', 'arrival ASC')} WHERE place <= 15",
        ("SELECT user_id, least(count(*), 15)::INT AS row_count FROM events GROUP BY user_id",),
    ),
}
JOINED = {
    "inner_join": Query(
        "id BIGINT, city STRING",
        "SELECT e.id, c.city FROM events e JOIN customers c ON e.user_id = c.user_id",
        (SIDE % "events", UNIQUE % "customers"),
        is_exact=False,
    ),
    "unique_join": Query(
        "shop INT, user_id STRING",
        "SELECT e.shop, v.user_id FROM events e JOIN visits v ON e.note = v.page",
        (SIDE % "events", UNIQUE % "visits"),
        is_exact=False,
    ),
    "left_join": Query(
        "shop INT, user_id STRING, city STRING",
        "SELECT e.shop, e.user_id, c.city FROM events e LEFT JOIN customers c "
        "ON e.user_id = c.user_id",
        (MATCHED % ("customers", "a.user_id = b.user_id", "events"), UNIQUE % "customers"),
        is_exact=False,
    ),
    "full_join": Query(
        "a STRING, b STRING, city STRING, page STRING",
        "SELECT c.user_id, v.user_id, c.city, v.page FROM customers c FULL JOIN visits v "
        "ON c.user_id = v.user_id",
        (
            COUNTED % ("visits", "a.user_id = b.user_id", "customers"),
            COUNTED % ("customers", "a.user_id = b.user_id", "visits"),
        ),
        is_exact=False,
    ),
    "full_unique_join": Query(
        "a STRING, b STRING",
        "SELECT c.user_id, v.user_id FROM customers c FULL JOIN visits v ON c.city = v.page",
        (
            COUNTED % ("visits", "a.city = b.page", "customers"),
            COUNTED % ("customers", "a.page = b.city", "visits"),
        ),
        is_exact=False,
    ),
    "semi_join": Query(
        "id BIGINT",
        "SELECT id FROM events WHERE note IN (SELECT page FROM visits)",
        (MATCHED % ("visits", "a.note = b.page", "events"), SIDE % "visits"),
        is_exact=False,
    ),
    "retracting_join": Query(
        "place STRING, n BIGINT, most DECIMAL(30, 2), latest TIMESTAMP(6), user_id STRING",
        f"SELECT t.place, t.n, t.most, t.latest, c.user_id FROM ({USERS.format('')}) t LEFT JOIN "
        "customers c ON t.place = c.city",
        (
            USERS.format("user_id, "),
            MATCHED % ("customers", "a.place = b.city", f"({USERS.format('')})"),
            UNIQUE % "customers",
        ),
        is_exact=False,
    ),
    "anti_join": Query(
        "user_id STRING",
        "SELECT user_id FROM customers c WHERE NOT EXISTS (SELECT * FROM visits v WHERE "
        "v.page = c.city)",
        (COUNTED % ("visits", "a.city = b.page", "customers"), SIDE % "visits"),
        is_exact=False,
    ),
}


EVERY = GROUPED | JOINED
TTL = "table.exec.state.ttl=2d"
TWO_PHASES = " ".join(
    f"table.exec.mini-batch.{setting}" for setting in ("enabled=true", "allow-latency=1s", "size=7")
)


def rows_of(source: str, first: int, stop: int) -> list[dict[str, Any]]:
    """Return rows of a source, of which some have nulls, and amounts that occur several times."""
    if source == "events":
        return [
            {
                "id": n,
                "user_id": None if n % 13 == 0 else f"user {n * 7 % (5 + n // 20)}",
                "shop": None if n % 17 == 0 else n * 5 % 6,
                "amount": None if n % 19 == 0 else f"{n * 37 % 23}.{n % 4 * 25:02}",
                "price": None if n % 23 == 0 else n * 29 % 31 / 4,
                "note": None if n % 5 == 0 else f"place {n * 3 % 7}",
                "big": None if n % 8 < 6 else f"{n}.25",
                "exact": None if n % 9 < 7 else f"2026-01-01 00:00:{n % 60:02}.{n:06}",
                "occurred": str(datetime(2026, 1, 1) + timedelta(seconds=n, milliseconds=n % 9)),
            }
            for n in range(first, stop)
        ]
    column = "city" if source == "customers" else "page"
    step = 1 if source == "customers" else 2
    return [
        {"user_id": f"user {n}", column: None if n % 4 == 3 else f"place {n % 9}"}
        for n in range(first // 12 * step, stop // 12 * step)
    ]


def write_sources(folder: Path, first: int, stop: int) -> Path:
    """Write one file for each source; a run reads all of it."""
    for source in SOURCES:
        place = folder / source
        place.mkdir(parents=True)
        lines = [json.dumps(row) for row in rows_of(source, first, stop)]
        (place / "rows.json").write_text("\n".join(lines) + "\n")
    return folder


def statements(folder: Path, queries: Mapping[str, Query]) -> str:
    """Return the statements that define the tables, and the statement set of the queries."""
    lines = [
        f"CREATE TABLE {name} ({columns}) WITH ('connector' = 'filesystem', "
        f"'path' = 'file://{folder / name}', 'format' = 'json')"
        for name, columns in SOURCES.items()
    ]
    lines += [
        f"CREATE TABLE {name} ({query.sink}) WITH ('connector' = 'print', "
        f"'print-identifier' = '{name}')"
        for name, query in queries.items()
    ]
    inserts = "\n".join(f"INSERT INTO {name} {query.sql};" for name, query in queries.items())
    return ";\n\n".join([*lines, f"STATEMENT SET BEGIN\n{inserts}\nEND"])


def printed(output: str) -> dict[str, list[tuple[str, str]]]:
    """Return what the sinks printed: the kind of each change and its row, by sink."""
    changes: dict[str, list[tuple[str, str]]] = {}
    for name, kind, row in re.findall(r"^(\w+)(?::\d+)?> ([+-][IUD])\[(.*)\]$", output, re.M):
        changes.setdefault(name, []).append((kind, row))
    return changes


def runs(output: str) -> list[dict[str, list[tuple[str, str]]]]:
    """Return what each run printed."""
    return [
        printed(text) for text in re.findall(r"^begin \d+\n(.*?)^end \d+$", output, re.S | re.M)
    ]


def result(changes: Sequence[tuple[str, str]]) -> Counter[str]:
    """Return the rows that remain after all changes, with their numbers."""
    rows: Counter[str] = Counter()
    for kind, row in changes:
        rows[row] += 1 if kind[0] == "+" else -1
    return Counter({row: times for row, times in rows.items() if times})


def bootstrap(store: StateStore, plan: FlinkPlan, queries: Mapping[str, Query]) -> None:
    """Make each state of the plan from the first events, with the SQL of its query."""
    connection = duckdb.connect()
    types = dict.fromkeys(("amount", "big", "exact", "occurred"), pa.string())
    for source in SOURCES:
        rows = pa.Table.from_pylist(rows_of(source, 0, FIRST))
        rows = rows.cast(pa.schema([(f.name, types.get(f.name, f.type)) for f in rows.schema]))
        connection.register(f"{source}_text", rows)
        columns = "*"
        if source == "events":
            columns = (
                "* REPLACE (amount::DECIMAL(10, 2) AS amount, occurred::TIMESTAMP AS occurred, "
                "big::DECIMAL(30, 2) AS big, exact::TIMESTAMP AS exact)"
            )
        connection.sql(f"CREATE TABLE {source} AS SELECT {columns} FROM {source}_text")
    tables = [table for query in queries.values() for table in query.tables]
    counts = ("row_count", "match_count", "position")
    for state, table in zip(plan.states, tables, strict=True):
        names = (column.name for column in state.table_columns if column.name not in counts)
        sql = table.format(columns=", ".join(names))
        rows = connection.sql(sql).to_arrow_table()
        bootstrap_flink_state(store, plan, state.operator, state.state, rows)


def compare(
    version: str,
    queries: Mapping[str, Query],
    folder: Path,
    *,
    older: str | None = None,
    backends: Sequence[str] = ("rocksdb",),
    settings: str = "",
) -> None:
    """Compare the three runs; with ``older`` that version of Flink compiles the plan."""
    plan_file, sql, sources = folder / "plan.json", folder / "statements.sql", folder / "sources"
    sql.write_text(statements(sources, queries))
    every, first, rest = (
        write_sources(folder / name, start, stop)
        for name, start, stop in (("all", 0, ALL), ("first", 0, FIRST), ("rest", FIRST, ALL))
    )
    run = f"run {plan_file} hashmap -"
    steps = [f"link {every} {sources}", run, f"link {first} {sources}", run]
    compiling = f"compile {sql} {plan_file} {settings}".strip()
    if older is None:
        steps = [compiling, *steps]
    else:
        Flink(older).java("golden.Plans", [compiling])
    whole, before = runs(Flink(version).java("golden.Plans", steps))
    plan = read_flink_plan(str(plan_file))
    assert [operator.problem for operator in plan.operators] == [None] * len(plan.operators)
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    bootstrap(store, plan, queries)
    savepoint = export_savepoint(store, str(folder / "savepoint"), parallelism=2).savepoint
    steps = [f"run {plan_file} {backend} {savepoint}" for backend in backends]
    steps = [f"link {rest} {sources}", *steps]
    for after in runs(Flink(version).java("golden.Plans", steps)):
        assert set(after) == set(queries)
        for name, query in queries.items():
            changes = [*before[name], *after[name]]
            if query.is_exact:
                assert Counter(changes) == Counter(whole[name]), name
            else:
                assert result(changes) == result(whole[name]), name


@pytest.mark.long
def test_a_plan_continues_from_tables(tmp_path: Path) -> None:
    """One operator of each kind: a group aggregate, a deduplication, a top-N and a join."""
    queries = {name: EVERY[name] for name in ("totals", "lasts", "best", "left_join")}
    compare(NEWEST, queries, tmp_path)


@pytest.mark.long
def test_flink_compiles_the_golden_plan(tmp_path: Path) -> None:
    compiled = tmp_path / "plan.json"
    Flink(NEWEST).java("golden.Plans", [f"compile {FOLDER / '2.3_plan.sql'} {compiled}"])
    assert json.loads(compiled.read_text()) == json.loads((FOLDER / "2.3_plan.json").read_text())


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_all_states_continue(version: str, tmp_path: Path) -> None:
    compare(version, EVERY, tmp_path, backends=["rocksdb", "hashmap"])


@pytest.mark.long
def test_a_plan_of_an_older_flink_continues(tmp_path: Path) -> None:
    """Flink 1.20 compiles the plan, and Flink 2.3 runs it."""
    compare(NEWEST, EVERY, tmp_path, older=OLDER)


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("settings", [TTL, TWO_PHASES], ids=["ttl", "two_phases"])
def test_other_settings(version: str, settings: str, tmp_path: Path) -> None:
    """States with a TTL, and group aggregates in two phases with mini-batches."""
    queries = {name: replace(query, is_exact=False) for name, query in EVERY.items()}
    if settings == TWO_PHASES:
        del queries["everything"], queries["early"]
    compare(version, queries, tmp_path, settings=settings)
