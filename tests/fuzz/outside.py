"""Readers that do not use the store: DuckDB, Polars and delta-rs on its files."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from tests.fuzz.givers import rows_of
from tests.fuzz.kinds import Kind, name_of
from tests.fuzz.model import Known
from tests.fuzz.readers import GROUP, Reader, same
from tests.fuzz.world import NAME, UID, World

__all__ = ["DELTA", "OUTSIDE", "of_delta", "plain_files"]


def _entry(world: World, number: int) -> Any:
    return world.store.checkpoint(number).manifest.keyed_entry(UID, NAME)


def plain_files(world: World, number: int) -> list[str]:
    """Return the files that contain exactly the rows of a state, or [] if changes apply to them."""
    entry = _entry(world, number)
    if entry.layers or world.shape.ttl_ms is not None:
        return []
    return [f"{world.store.url}/{entry.table.path}/{handle.path}" for handle in entry.handles]


def by_duckdb(world: World, number: int, draw: Random) -> None:
    _files(world, number, "DuckDB", _duckdb)


def by_polars(world: World, number: int, draw: Random) -> None:
    known = world.model.known[number]
    if not any(_has(column.kind, "map") for column in known.columns):
        _files(world, number, "Polars", _polars)


def _files(world: World, number: int, who: str, read: Callable[[list[str]], Any]) -> None:
    known, files = world.model.known[number], plain_files(world, number)
    if files:
        table = read([file.removeprefix("file://") for file in files])
        found = rows_of(table, (GROUP, *known.columns))
        same(found, known.rows.values(), known.columns, who)


def _duckdb(files: list[str]) -> Any:
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        typed = "hive_types = {'key_group': INTEGER}, hive_types_autocast = false"
        named = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        hive = "key_group=" in files[0]
        said = f", hive_partitioning = true, {typed}" if hive else ", hive_partitioning = false"
        sql = f"SELECT * FROM read_parquet([{named}]{said})"
        return connection.sql(sql).to_arrow_table()


def _polars(files: list[str]) -> Any:
    hive = "key_group=" in files[0]
    schema = {"key_group": pl.Int32} if hive else None
    return pl.read_parquet(files, hive_partitioning=hive, hive_schema=schema).to_arrow()


def _has(kind: Kind, name: str) -> bool:
    if isinstance(kind, str):
        return kind == name
    inner = [part for _, part in kind[1]] if name_of(kind) == "struct" else list(kind[1:])
    return name_of(kind) == name or any(
        _has(part, name) for part in inner if not isinstance(part, int)
    )


def of_delta(
    world: World, number: int, who: str, read: Callable[[str, int, Known], pa.Table]
) -> None:
    """Compare a version of the Delta table with the checkpoint that it names."""
    known, entry = world.model.known[number], _entry(world, number)
    if entry.table.version is None or not plain_files(world, number):
        return
    path = f"{world.store.url}/{entry.table.path}".removeprefix("file://")
    table = read(path, entry.table.version, known)
    found = rows_of(table, (GROUP, *known.columns))
    same(found, known.rows.values(), known.columns, who)


def by_delta_rs(world: World, number: int, draw: Random) -> None:
    from deltalake import DeltaTable

    def read(path: str, version: int, known: Known) -> Any:
        return pa.table(DeltaTable(path, version=version).to_pyarrow_table())

    of_delta(world, number, "deltalake", read)


def by_polars_delta(world: World, number: int, draw: Random) -> None:
    known = world.model.known[number]
    if not any(_has(column.kind, "map") for column in known.columns):
        of_delta(
            world,
            number,
            "Polars on Delta",
            lambda path, version, known: pl.read_delta(path, version=version).to_arrow(),
        )


OUTSIDE: dict[str, Reader] = {"DuckDB": by_duckdb, "Polars": by_polars}
DELTA: dict[str, Reader] = {"deltalake": by_delta_rs, "Polars on Delta": by_polars_delta}
