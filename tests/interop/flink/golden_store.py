"""A store without Flink's bytes, whose states of the golden job come from that job's output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statestore.format.state import StateKind, TimeToLive
from statestore.interop.flink.options import FlinkTarget
from statestore.store import StateStore

__all__ = ["TUPLED", "golden_rows", "write_golden_store"]

Row = Mapping[str, Any]
NOW = 1_790_000_000_000
TUPLED = FlinkTarget(
    types={
        "kinds/tuple": "Tuple",
        "kinds/aggregating": "Tuple",
        "kinds/map_int_tuple": "Map<Integer, Tuple2<String, Long>>",
        "kinds/map_tuple_string": "Map<Tuple, String>",
        "parts/union": "List<Tuple>",
    }
)
"""The golden job, in which values of several columns are tuples."""

_KEYS = {
    "by_long": [("id", pa.int64())],
    "by_tuple": [("name", pa.string()), ("small", pa.int32())],
    **{uid: [("name", pa.string())] for uid in ("kinds", "sums", "lists")},
}
_WINDOW = [("start", pa.int64()), ("end", pa.int64())]
_NUMBERS = pa.map_(pa.string(), pa.int64())


@dataclass(frozen=True)
class _State:
    """A state: its kind, the identity of its entries, its values, and how they are parsed from
    text.
    """

    uid: str
    name: str
    kind: str
    values: tuple[tuple[str, pa.DataType], ...]
    entry: tuple[tuple[str, pa.DataType], ...] = ()
    of: Callable[[Any], Any] = lambda value: value
    lives: bool = False

    def rows(self, found: Iterable[Row]) -> list[dict[str, Any]]:
        """Return the rows of a store."""
        return [row for one in found for row in self._rows(one)]

    def _rows(self, one: Row) -> list[dict[str, Any]]:
        keys = one["key"] if self.uid == "by_tuple" else [one["key"]]
        base = dict(zip((name for name, _ in _KEYS[self.uid]), keys, strict=True))
        if one["namespace"] is not None:
            base |= dict(zip(("start", "end"), one["namespace"], strict=True))
        if self.lives:
            base["used"] = NOW
        if self.kind == "list":
            each = enumerate(one["value"])
            return [base | {"at": at} | self._fields(value) for at, value in each]
        if self.kind == "map":
            names = [name for name, _ in self.entry]
            return [
                base | _zipped(names, entry) | self._fields(value) for entry, value in one["value"]
            ]
        return [base | self._fields(one["value"])]

    def _fields(self, value: Any) -> dict[str, Any]:
        return _zipped([name for name, _ in self.values], self.of(value))


def _zipped(names: list[str], value: Any) -> dict[str, Any]:
    return dict(zip(names, value if len(names) > 1 else [value], strict=True))


def _entries(value: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(one) for one in value]


def _one(name: str, kind: pa.DataType, of: Callable[[Any], Any] = lambda value: value) -> _State:
    return _State("kinds", name, "value", (("value", kind),), of=of)


_LONG = (("value", pa.int64()),)
_TEXT = (("value", pa.string()),)
_AT = (("at", pa.int64()),)
_STATES = (
    *(
        state
        for uid in ("by_long", "by_tuple")
        for state in (
            _State(uid, "last", "value", _LONG),
            _State(uid, "texts", "list", _TEXT, _AT),
            _State(uid, "sums", "map", (("value", pa.float64()),), (("number", pa.int32()),)),
        )
    ),
    _one("long", pa.int64()),
    _one("string", pa.string()),
    _one("boolean", pa.bool_()),
    _one("int", pa.int32()),
    _one("short", pa.int16()),
    _one("byte", pa.int8()),
    _one("double", pa.float64(), float),
    _one("float", pa.float32(), float),
    _one("local_date", pa.date32()),
    _one("bytes", pa.binary(), bytes.fromhex),
    _one("nested_list", pa.list_(_NUMBERS), lambda value: [_entries(one) for one in value]),
    _one("nested_map", pa.map_(pa.int64(), pa.list_(pa.string())), _entries),
    _State("kinds", "reducing", "reducing", _LONG),
    _State("kinds", "aggregating", "aggregating", (("n", pa.int64()), ("sum", pa.float64()))),
    _State("kinds", "tuple", "value", (("a", pa.string()), ("b", pa.int64()), ("c", pa.float64()))),
    _State(
        "kinds",
        "row",
        "value",
        (("number", pa.int64()), ("text", pa.string()), ("when", pa.date32())),
        of=lambda value: value["row"],
    ),
    _State("kinds", "list_long", "list", _LONG, _AT),
    _State("kinds", "list_string", "list", _TEXT, _AT),
    _State("kinds", "map_string_long", "map", _LONG, (("text", pa.string()),)),
    _State("kinds", "map_long_string", "map", _TEXT, (("number", pa.int64()),)),
    _State(
        "kinds",
        "map_int_tuple",
        "map",
        (("text", pa.string()), ("value", pa.int64())),
        (("number", pa.int32()),),
    ),
    _State(
        "kinds", "map_tuple_string", "map", _TEXT, (("text", pa.string()), ("number", pa.int32()))
    ),
    _State("kinds", "ttl_value", "value", _TEXT, lives=True),
    _State("kinds", "ttl_list", "list", _LONG, _AT, lives=True),
    _State("kinds", "ttl_map", "map", _LONG, (("text", pa.string()),), lives=True),
    _State("sums", "window-contents", "aggregating", _LONG),
    _State("lists", "window-contents", "list", _LONG, _AT),
)
_PARTS = {"split": _TEXT, "union": (("small", pa.int32()), ("number", pa.int64()))}


def golden_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the golden rows that the store has, except deleted ``Row`` entries."""
    names = {(one.uid, one.name) for one in _STATES}
    operator = {("kinds", "seen"), ("parts", "split"), ("parts", "union"), ("parts", "rules")}
    found = []
    for row in rows:
        uid, name = row["operator"], row.get("state")
        is_deleted = name == "row" and row["value"]["kind"] != "INSERT"
        is_timer = "timer" in row and uid in _KEYS
        if is_timer or ((uid, name) in names | operator and not is_deleted):
            found.append(row)
    return found


def _of(rows: Iterable[Row], uid: str, name: str) -> list[Row]:
    return [row for row in rows if (row["operator"], row.get("state")) == (uid, name)]


def write_golden_store(url: str, rows: Iterable[Row], *, max_parallelism: int = 128) -> StateStore:
    """Write a store with the states of :func:`golden_rows`; return it."""
    store = StateStore.open(url, layout="ranged")
    rows = golden_rows(rows)
    with store.snapshot(parallelism=2) as checkpoint:
        for state in _STATES:
            own = [
                row
                for row in rows
                if (row["operator"], row.get("state")) == (state.uid, state.name)
            ]
            window = _WINDOW if state.uid in ("sums", "lists") else []
            clock = [("used", pa.int64())] if state.lives else []
            fields = [*_KEYS[state.uid], *window, *state.entry, *state.values, *clock]
            checkpoint.write_keyed(
                state.uid,
                state.name,
                pa.Table.from_pylist(state.rows(own), pa.schema(fields)),
                key=[name for name, _ in _KEYS[state.uid]],
                namespace=[name for name, _ in window],
                max_parallelism=max_parallelism,
                ttl=TimeToLive("36500d", "used") if state.lives else None,
                kind=StateKind(state.kind),
                entry=[name for name, _ in state.entry],
            )
        for uid in _KEYS:
            for domain in ("event", "processing"):
                own = [row for row in rows if row["operator"] == uid and row.get("timer") == domain]
                _write_timers(checkpoint, uid, domain, own, max_parallelism)
        _write_parts(checkpoint, rows)
    return store


def _write_timers(checkpoint: Any, uid: str, domain: str, rows: list[Row], most: int) -> None:
    if not rows:
        return
    window = _WINDOW if uid in ("sums", "lists") else []
    base = _State(uid, domain, "value", (("time", pa.int64()),))
    table = pa.Table.from_pylist(
        base.rows([{**row, "value": row["time"]} for row in rows]),
        pa.schema([*_KEYS[uid], *window, *base.values]),
    )
    checkpoint.write_keyed(
        uid,
        f"{domain} timers",
        table,
        kind="timers",
        key=[name for name, _ in _KEYS[uid]],
        namespace=[name for name, _ in window],
        entry="time",
        time_domain=domain,
        max_parallelism=most,
    )


def _write_parts(checkpoint: Any, rows: list[Row]) -> None:
    def lists(uid: str, name: str) -> list[list[Any]]:
        own = sorted(_of(rows, uid, name), key=lambda row: int(row["subtask"]))
        return [row["values"] for row in own]

    checkpoint.write_split(
        "kinds", "seen", [[{"value": one} for one in part] for part in lists("kinds", "seen")]
    )
    checkpoint.write_split(
        "parts", "split", [[{"value": one} for one in part] for part in lists("parts", "split")]
    )
    union = [{"small": small, "number": number} for small, number in lists("parts", "union")[0]]
    schema = pa.schema(_PARTS["union"])
    checkpoint.write_union("parts", "union", pa.Table.from_pylist(union, schema))
    rules = [{"text": text, "value": value} for text, value in lists("parts", "rules")[0]]
    checkpoint.write_broadcast("parts", "rules", rules)
