"""Every code path that parses a data file: from a store to a comparable result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from statestore import StateStore
from statestore.errors import CorruptionError
from statestore.rows.digests import rows_digest
from statestore.streaming.progress import Progress
from statestore.testing.faults import CountingStorage
from tests.damages.stores import KEYS

__all__ = ["READERS"]

Reader = Callable[[StateStore], Any]

_STATES = ("whole", "changed")
_KEYS = tuple(f"k{number:03}" for number in range(0, KEYS, 31))


def _found(rows: pa.Table) -> tuple[int, int]:
    return rows.num_rows, rows_digest(rows)


def _restore(store: StateStore, parallelism: int) -> Any:
    restored = store.restore(parallelism=parallelism)
    return [
        _found(restored.keyed("u", name).to_arrow(subtask))
        for name in _STATES
        for subtask in range(parallelism)
    ]


def _by_ranges(store: StateStore) -> Any:
    return _restore(StateStore.open(CountingStorage(store.url, 4), table_format="parquet"), 3)


def _get(store: StateStore) -> Any:
    restored = store.restore(parallelism=1)
    return [restored.keyed("u", name).get(key) for name in _STATES for key in _KEYS]


def _keys(store: StateStore) -> Any:
    restored = store.restore(parallelism=1)
    return [_found(restored.keyed("u", name).lookup(pa.table({"k": _KEYS}))) for name in _STATES]


def _lazy(store: StateStore) -> Any:
    restored = store.restore(parallelism=1)
    return [restored.keyed("u", name).lazy(0).get(key) for name in _STATES for key in _KEYS]


def _query(store: StateStore) -> Any:
    return [_found(store.query(f"SELECT * FROM {name}").read_all()) for name in _STATES]


def _query_some(store: StateStore) -> Any:
    asked = "SELECT k, x FROM {} WHERE n > 100 AND n < 200 AND k > 'k1'"
    return [_found(store.query(asked.format(name)).read_all()) for name in _STATES]


def _query_count(store: StateStore) -> Any:
    names = (*_STATES, "splits", "offsets", "progress")
    return [store.query(f"SELECT count(*) FROM {name}").read_all().to_pylist() for name in names]


def _diff(store: StateStore) -> Any:
    return [
        (one.operator, one.state, one.added, one.removed, one.changed) for one in _differing(store)
    ]


def _differing(store: StateStore) -> Any:
    return store.inspect.diff(1, 2).states


def _as_of(store: StateStore) -> Any:
    return [_found(store.inspect.as_of(1, 2, "u", name).read_all()) for name in _STATES]


def _skew(store: StateStore) -> Any:
    found = store.inspect.skew("u", "whole", keys=3, read_groups=2)
    return repr(found)


def _operator(store: StateStore) -> Any:
    restored = store.restore(parallelism=3)
    return [
        restored.operator_state("source", name).subtask(subtask)
        for name in ("splits", "offsets", "progress")
        for subtask in range(3)
    ]


def _progress(store: StateStore) -> Any:
    return Progress.of(store.restore(parallelism=1), "source")


def _verify(store: StateStore) -> Any:
    """This reader must report the damage."""
    report = store.maintenance.verify("all")
    if not report.is_intact:
        raise CorruptionError(report.broken[0].what[0])
    return "intact"


def _salvage(store: StateStore) -> Any:
    """This reader must report the lost rows."""
    states = store.maintenance.salvage(2, dry_run=True).states
    if any(state.lost for state in states):
        raise CorruptionError("lost")
    return "nothing lost"


def _edit(store: StateStore) -> Any:
    done = store.maintenance.edit("u", "changed", sql="SELECT * FROM state", dry_run=True)
    return done.rows_before, done.rows_after


READERS: dict[str, Reader] = {
    "restore at 1": lambda store: _restore(store, 1),
    "restore at 3": lambda store: _restore(store, 3),
    "restore by ranges": _by_ranges,
    "get": _get,
    "keys": _keys,
    "lazy": _lazy,
    "query": _query,
    "query of some": _query_some,
    "query of counts": _query_count,
    "diff": _diff,
    "as of": _as_of,
    "skew": _skew,
    "operator state": _operator,
    "progress": _progress,
    "verify": _verify,
    "salvage": _salvage,
    "edit": _edit,
}
