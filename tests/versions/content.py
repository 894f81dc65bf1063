"""The states that peers write, and what a checkpoint must therefore contain.

A state is a dictionary from the identity of a row (key, namespace and entry columns) to the row.
The tests draw rows and changes, and never ask a store what it should contain.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

__all__ = ["FORMS", "NOW_MS", "Content", "Form", "Requests", "expected_rows", "first_content"]

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
DAY = dt.date(2026, 2, 28)
Identity = tuple[Any, ...]
Rows = dict[Identity, dict[str, Any]]
Requests = list[dict[str, Any]]


@dataclass(frozen=True)
class Form:
    """The form of a keyed state: how it is written, its columns, and how its rows are drawn."""

    operator: str
    state: str
    schema: pa.Schema
    identity: tuple[str, ...]
    arguments: Mapping[str, Any]
    draw_identity: Callable[[Random], Identity]
    draw_values: Callable[[Random], tuple[Any, ...]]
    ttl_ms: int = 0

    @property
    def name(self) -> str:
        """The name of the state with its operator."""
        return f"{self.operator}/{self.state}"

    def row(self, random: Random, identity: Identity) -> dict[str, Any]:
        """Draw the row of an identity."""
        values = [*identity, *self.draw_values(random)]
        return dict(zip(self.schema.names, values, strict=True))

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns, which are the first ones of the identity."""
        columns = self.arguments["key"]
        return (columns,) if isinstance(columns, str) else tuple(columns)

    def table(self, rows: Rows) -> pa.Table:
        """Return rows as a table."""
        return pa.Table.from_pylist([*rows.values()], self.schema)


def _maybe(random: Random, value: Any) -> Any:
    return None if random.random() < 0.2 else value


USERS = ("ann", "bob", "zoë", "", "状态", "a/b", *(f"user-{number}" for number in range(12)))
NESTED = pa.struct([("tags", pa.list_(pa.string())), ("seen", pa.map_(pa.string(), pa.int64()))])


def _every_type(random: Random) -> tuple[Any, ...]:
    nested = {
        "tags": [_maybe(random, tag) for tag in random.sample(("x", "y", ""), 2)],
        "seen": [("DE", random.randrange(9)), ("é", None)][: random.randrange(3)],
    }
    share = random.choice((0.5, -0.0, float("inf"), 1e-300, random.random()))
    at = dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC) + dt.timedelta(
        microseconds=random.randrange(2**44)
    )
    return (
        _maybe(random, random.randrange(-(2**63), 2**63)),
        _maybe(random, share),
        _maybe(random, Decimal(random.randrange(-(10**9), 10**9)).scaleb(-2)),
        _maybe(random, DAY + dt.timedelta(random.randrange(1000))),
        _maybe(random, at),
        _maybe(random, random.randbytes(random.randrange(6))),
        _maybe(random, random.random() < 0.5),
        _maybe(random, nested),
    )


# A day before the clock, an hour of which is left, or a time in the future.
def _seen_ms(random: Random) -> int:
    return NOW_MS + random.choice((-30, -23, 5)) * HOUR_MS


FORMS = (
    Form(
        "totals",
        "by-user",
        pa.schema(
            [
                *(("user", pa.string()), ("count", pa.int64()), ("share", pa.float64())),
                *(("amount", pa.decimal128(12, 2)), ("day", pa.date32())),
                *(("at", pa.timestamp("us", "UTC")), ("raw", pa.binary())),
                *(("flag", pa.bool_()), ("nested", NESTED)),
            ]
        ),
        ("user",),
        {"key": "user", "max_parallelism": 4},
        lambda random: (random.choice(USERS),),
        _every_type,
    ),
    Form(
        "totals",
        "by-number",
        pa.schema([("user", pa.string()), ("number", pa.int64()), ("text", pa.string())]),
        ("user", "number"),
        {"key": "user", "kind": "map", "entry": "number", "max_parallelism": 4},
        lambda random: (random.choice(USERS), random.choice((-1, 0, 2**62))),
        lambda random: (_maybe(random, random.choice(USERS)),),
    ),
    Form(
        "orders",
        "lines",
        pa.schema(
            [
                *(("shop", pa.string()), ("region", pa.int32())),
                *(("position", pa.int64()), ("item", pa.struct([("name", pa.string())]))),
            ]
        ),
        ("shop", "region", "position"),
        {"key": ["shop", "region"], "kind": "list", "entry": "position", "max_parallelism": 5},
        lambda random: (random.choice("ABC"), random.choice((-1, 1)), random.randrange(4)),
        lambda random: (_maybe(random, {"name": _maybe(random, random.choice(USERS))}),),
    ),
    Form(
        "orders",
        "alarms",
        pa.schema([("shop", pa.string()), ("region", pa.int32()), ("at", pa.int64())]),
        ("shop", "region", "at"),
        {
            "key": ["shop", "region"],
            "kind": "timers",
            "entry": "at",
            "time_domain": "event",
            "max_parallelism": 5,
        },
        lambda random: (random.choice("ABC"), random.choice((-1, 1)), random.randrange(9)),
        lambda random: (),
    ),
    Form(
        "windows",
        "sums",
        pa.schema([("id", pa.int64()), ("start", pa.int64()), ("sum", pa.decimal128(38, 10))]),
        ("id", "start"),
        {"key": "id", "namespace": "start", "kind": "reducing", "max_parallelism": 3},
        lambda random: (random.choice((-(2**63), -1, 0, 7, 2**40)), random.randrange(3)),
        lambda random: (Decimal(random.randrange(10**30)).scaleb(-10),),
    ),
    Form(
        "lives",
        "last",
        pa.schema([("id", pa.int32()), ("seen", pa.int64()), ("page", pa.string())]),
        ("id",),
        {
            "key": "id",
            "max_parallelism": 3,
            "ttl": {"duration": "24h", "column": "seen"},
        },
        lambda random: (random.randrange(-5, 5),),
        lambda random: (_seen_ms(random), random.choice(USERS)),
        24 * HOUR_MS,
    ),
)


@dataclass(frozen=True)
class Content:
    """All states of a checkpoint: the rows by state, and the elements of the source."""

    rows: dict[str, Rows] = field(default_factory=dict)
    offset: int = 0

    def written(self, random: Random, how: str) -> tuple[Content, Requests]:
        """Draw the next content, and the requests that write it.

        ``how`` is ``full``, ``changes`` or ``against`` for all states, or ``mixed``, where some
        states are carried as well.
        """
        rows, requests = dict(self.rows), Requests()
        for form in FORMS:
            before = rows.get(form.name, {})
            kinds = ("full", "changes", "against", "carry")
            chosen = random.choice(kinds) if how == "mixed" else how
            if form.name not in rows:
                chosen = "full"
            rows[form.name], request = _request(form, before, random, chosen)
            requests.append(request)
        content = Content(rows, self.offset + 1)
        return content, [*requests, *content._source()]

    def without(self, operator: str, column: str, value: Any) -> Content:
        """Return the content without the rows of a key of an operator."""
        rows = {
            form.name: {
                identity: row
                for identity, row in self.rows[form.name].items()
                if form.operator != operator or row[column] != value
            }
            for form in FORMS
        }
        return replace(self, rows=rows)

    def with_rows(self, name: str, changed: Rows, deleted: set[Identity]) -> Content:
        """Return the content with some rows of a state replaced and others deleted."""
        kept = {one: row for one, row in self.rows[name].items() if one not in deleted}
        return replace(self, rows=self.rows | {name: kept | changed})

    @property
    def rules(self) -> list[dict[str, Any]]:
        """The elements of the broadcast state."""
        return [{"rule": f"x > {self.offset}"}, {"rule": "é"}]

    @property
    def offsets(self) -> list[dict[str, Any]]:
        """The elements of the union state, and of the split state."""
        return [{"partition": number, "offset": self.offset} for number in range(3)]

    def _source(self) -> Requests:
        union, rules = [[*self.offsets[:2]], [*self.offsets[2:]]], self.rules
        states = (("union", union), ("split", union), ("broadcast", rules))
        return [
            {
                "method": f"write_{mode}",
                "operator": "source",
                "state": mode,
                "rows": elements,
                "arguments": {},
            }
            for mode, elements in states
        ]


def _request(form: Form, before: Rows, random: Random, how: str) -> tuple[Rows, dict[str, Any]]:
    request = {"operator": form.operator, "state": form.state, "arguments": form.arguments}
    drawn = [form.draw_identity(random) for _ in range(12 if how == "full" else 4)]
    upserts = {identity: form.row(random, identity) for identity in drawn}
    if how == "full":
        return upserts, request | {"method": "write_keyed", "rows": form.table(upserts)}
    if how == "carry":
        return before, request | {"method": "carry", "rows": None}
    size = len(form.key)
    untouched = [one for one in before if one not in upserts]
    deleted = set(random.sample(untouched, min(2, len(untouched))))
    # All entries of a key go, and new ones may come; of another key, all entries go.
    cleared = {identity[:size] for identity in drawn[:1]}
    others = sorted({one[:size] for one in before} - {one[:size] for one in (*upserts, *deleted)})
    deleted = {one for one in deleted if one[:size] not in cleared}
    whole = {key for key in others[:1] if size < len(form.identity)}
    gone = {one for one in before if one in deleted or one[:size] in cleared | whole}
    after = {one: row for one, row in before.items() if one not in gone} | upserts
    if how == "against":
        request |= {"method": "write_changes_against", "rows": form.table(after)}
    else:
        deletes = [dict(zip(form.identity, one, strict=False)) for one in sorted(deleted)]
        deletes += [dict(zip(form.key, key, strict=True)) for key in sorted(whole)]
        changes = {
            "upserts": form.table(upserts),
            "deletes": deletes,
            "cleared": [dict(zip(form.key, key, strict=True)) for key in sorted(cleared)],
        }
        request |= {"method": "write_changes", "rows": changes}
    return after, request | {"arguments": {}}


def _alive(form: Form, rows: Rows) -> Rows:
    if not form.ttl_ms:
        return rows
    return {one: row for one, row in rows.items() if row["seen"] + form.ttl_ms > NOW_MS}


def expected_rows(form: Form, content: Content) -> pa.Table:
    """Return the rows that a restore gives, ordered by their identity."""
    rows = _alive(form, content.rows[form.name])
    return form.table(dict(sorted(rows.items())))


def first_content(random: Random) -> tuple[Content, Requests]:
    """Draw the content of a store's first checkpoint."""
    return Content().written(random, "full")
