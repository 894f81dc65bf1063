"""Events of the job in ``Boot.java``, and its state after some of them, as tables.

The state is computed here and not by Flink, as a user would compute it elsewhere.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from statestore import StateStore
from statestore.interop.flink.options import FlinkTarget

__all__ = [
    "ACCOUNT",
    "BASKET",
    "ITEM",
    "PLACE",
    "Deed",
    "make_deeds",
    "target_of",
    "write_deeds",
    "write_tables",
]

USERS = ("ann", "bob", "Zürich", "東京", "🦊", "")
CITIES = ("Oslo", "ключ", "x,y", None)
FAR = 7_000_000_000_000
LATER = 7_500
"""How long after its event the timer of a counter fires, in milliseconds."""

Row = dict[str, Any]


class Deed(NamedTuple):
    """An event of the job."""

    number: int
    user: str
    amount: int
    city: str | None


def make_deeds(count: int) -> list[Deed]:
    """Return events; the last ones have all users."""
    random = Random(20260901)
    return [
        Deed(
            number,
            USERS[number % len(USERS)] if number >= count - len(USERS) else random.choice(USERS),
            random.randint(-9, 60),
            random.choice(CITIES),
        )
        for number in range(count)
    ]


def write_deeds(deeds: Iterable[Deed], file: Path) -> None:
    """Write events as the job reads them."""
    lines = (f"{deed.user}\t{deed.amount}\t{deed.city or '-'}\n" for deed in deeds)
    file.write_text("".join(lines), encoding="utf-8")


_TYPES = {
    "accounts/account": "golden.Boot$Account",
    "accounts/basket": "golden.Boot$Basket",
    "accounts/items": "List<golden.Boot$Item>",
    "accounts/entries": "Map<Tuple2<String, Integer>, golden.Boot$Item>",
    "accounts/mean": "Tuple2<Long, Long>",
    "accounts/named": "Row<city String, count Long>",
    "accounts/positional": "Row",
    "accounts/triple": "Tuple3<String, Long, Double>",
    "by_class": "golden.Boot$Spot",
    "rules/rules": "Map<String, golden.Boot$Item>",
    "rules/log": "List<golden.Boot$Item>",
    "rules/parts": "List<Tuple2<String, Integer>>",
}
_CLASSES: Mapping[str, Any] = {
    "golden.Boot$Account": {
        "fields": {
            "owner": "String",
            "total": "long",
            "last": "Integer",
            "place": "golden.Boot$Place",
            "level": "golden.Boot$Level",
            "sum": "BigDecimal",
            "product": "BigInteger",
            "seen": "Instant",
            "since": "java.util.Date",
            "stamp": "java.sql.Timestamp",
            "letter": "char",
            "isOdd": "Boolean",
            "half": "double",
            "third": "float",
            "small": "short",
            "tiny": "byte",
            "raw": "byte[]",
            "lately": "int[]",
            "names": "String[]",
            "places": "golden.Boot$Place[]",
            "best": "Tuple2<String, Long>",
        }
    },
    "golden.Boot$Place": {"fields": {"zip": "Integer", "city": "String"}},
    "golden.Boot$Level": {"constants": ["LOW", "HIGH"]},
    "golden.Boot$Basket": {
        "fields": {
            "names": "List<String>",
            "sums": "Map<String, Long>",
            "sizes": "Set<Integer>",
            "places": "List<golden.Boot$Place>",
            "last": "Map<String, golden.Boot$Place>",
        }
    },
    "golden.Boot$Item": {"fields": {"name": "String", "amount": "int"}},
    "golden.Boot$Spot": {
        "fields": {"name": "String", "zone": "int"},
        "hash": "record(name, zone)",
    },
}


def target_of(version: str) -> FlinkTarget:
    """Return what the job says of its types; classes with collections are for Flink 2."""
    has_collections = not version.startswith("1")
    types = {
        name: declared
        for name, declared in _TYPES.items()
        if has_collections or name != "accounts/basket"
    }
    return FlinkTarget(types=types, classes=_CLASSES, version=version)


PLACE = pa.struct([("city", pa.string()), ("zip", pa.int32())])
ITEM = [("name", pa.string()), ("amount", pa.int32())]
_PAIR = pa.struct([("user", pa.string()), ("total", pa.int64())])
_TIME = pa.timestamp("us", "UTC")
ACCOUNT = [
    ("owner", pa.string()),
    ("total", pa.int64()),
    ("last", pa.int32()),
    ("place", PLACE),
    ("level", pa.string()),
    ("sum", pa.decimal128(18, 2)),
    ("product", pa.int64()),
    ("seen", _TIME),
    ("since", _TIME),
    ("stamp", _TIME),
    ("letter", pa.string()),
    ("isOdd", pa.bool_()),
    ("half", pa.float64()),
    ("third", pa.float32()),
    ("small", pa.int16()),
    ("tiny", pa.int8()),
    ("raw", pa.binary()),
    ("lately", pa.list_(pa.int32())),
    ("names", pa.list_(pa.string())),
    ("places", pa.list_(PLACE)),
    ("best", _PAIR),
]
BASKET = [
    ("names", pa.list_(pa.string())),
    ("sums", pa.map_(pa.string(), pa.int64())),
    ("sizes", pa.list_(pa.int32())),
    ("places", pa.list_(PLACE)),
    ("last", pa.map_(pa.string(), PLACE)),
]


def fire_time(domain: str, delay: int, number: int) -> int:
    """Return when a timer fires that an event registers, in milliseconds."""
    return FAR + number if domain == "processing" else number * 1000 + delay


def _time(millis: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=millis)


def _place(deed: Deed) -> Row:
    return {"city": deed.city, "zip": None if deed.amount % 3 == 0 else deed.amount}


def _account(done: Sequence[Deed]) -> Row:
    """Return the account of a user after some events of this user."""
    last = done[-1]
    total = sum(deed.amount for deed in done)
    amount, city = last.amount, last.city
    place = _place(last)
    return {
        "owner": last.user,
        "total": total,
        "last": None if amount < 0 else amount,
        "place": None if amount % 5 == 0 else place,
        "level": None if amount % 7 == 0 else "LOW" if total < 0 else "HIGH",
        "sum": Decimal(total).scaleb(-2),
        "product": total * amount,
        "seen": _time(last.number * 1001),
        "since": _time(done[0].number * 1000),
        "stamp": _time(last.number * 1001),
        "letter": chr(ord("a") + abs(amount) % 26),
        "isOdd": None if city is None else amount % 2 != 0,
        "half": amount / 2,
        "third": amount / 4,
        "small": amount,
        "tiny": amount,
        "raw": None if city is None else city.encode(),
        "lately": [amount, last.number],
        "names": [last.user, city],
        "places": [place, None],
        "best": {"user": last.user, "total": total},
    }


def _basket(done: Sequence[Deed]) -> Row:
    """Return the collections of a user, which begin with the first city."""
    first = next((at for at, deed in enumerate(done) if deed.city is not None), None)
    if first is None:
        return dict.fromkeys(name for name, _ in BASKET)
    done = done[first:]
    sums: dict[str, int] = {}
    last: dict[str, Row | None] = {}
    for deed in done:
        city = deed.city or ""
        sums[city] = sums.get(city, 0) + deed.amount
        last[city] = None if deed.amount % 5 == 0 else _place(deed)
    return {
        "names": [deed.city for deed in done],
        "sums": list(sums.items()),
        "sizes": sorted({deed.amount for deed in done}),
        "places": [None if deed.amount % 4 == 0 else _place(deed) for deed in done],
        "last": list(last.items()),
    }


def _item(deed: Deed) -> Row:
    return {"name": deed.city, "amount": deed.amount}


class _Tables:
    """Writes the states of the job into a store, each with one bootstrap."""

    def __init__(self, store: StateStore, deeds: Sequence[Deed]) -> None:
        self.store, self.deeds = store, deeds
        self.by_user: dict[str, list[Deed]] = {}
        for deed in deeds:
            self.by_user.setdefault(deed.user, []).append(deed)

    def write(
        self,
        uid: str,
        name: str,
        key: Sequence[tuple[str, pa.DataType]],
        columns: Sequence[tuple[str, pa.DataType]],
        rows: Iterable[Row],
        **options: Any,
    ) -> None:
        """Make a keyed state of rows."""
        table = pa.Table.from_pylist(list(rows), pa.schema([*key, *columns]))
        self.store.bootstrap(uid, name, table, key=[name for name, _ in key], **options)

    def write_values(
        self,
        name: str,
        columns: Sequence[tuple[str, pa.DataType]],
        value: Any,
        kind: str = "value",
    ) -> None:
        """Make a state of operator ``accounts`` with one row a user."""
        rows = ({"user": user} | value(done) for user, done in self.by_user.items())
        self.write("accounts", name, _USER, columns, rows, kind=kind)

    def accounts(self, version: str) -> None:
        """Make the states of operator ``accounts``."""
        self.write_values("account", ACCOUNT, _account)
        if not version.startswith("1"):
            self.write_values("basket", BASKET, _basket)
        items = (
            {"user": user, "at": at} | _item(deed)
            for user, done in self.by_user.items()
            for at, deed in enumerate(done)
        )
        columns = [("at", pa.int32()), *ITEM]
        self.write("accounts", "items", _USER, columns, items, kind="list", entry="at")
        self._maps()
        self.write_values(
            "most",
            [("most", pa.int64())],
            lambda done: {"most": max(deed.amount for deed in done)},
            "reducing",
        )
        self.write_values(
            "mean",
            [("count", pa.int64()), ("sum", pa.int64())],
            lambda done: {"count": len(done), "sum": sum(deed.amount for deed in done)},
            "aggregating",
        )
        counted = [("count", pa.int64()), ("city", pa.string())]
        for name in ("named", "positional"):
            self.write_values(
                name, counted, lambda done: {"count": len(done), "city": done[-1].city}
            )
        self.write_values(
            "triple",
            [("a", pa.string()), ("b", pa.int64()), ("c", pa.float64())],
            lambda done: {"a": done[-1].city or "", "b": len(done), "c": len(done) / 2},
        )
        epoch = dt.date(1970, 1, 1)
        self.write_values(
            "day",
            [("day", pa.date32())],
            lambda done: {"day": epoch + dt.timedelta(days=done[-1].amount)},
        )
        self.write_values(
            "numbers",
            [("numbers", pa.list_(pa.int64()))],
            lambda done: {"numbers": [deed.number for deed in done]},
        )

    def _maps(self) -> None:
        entries: dict[tuple[str, str, int], Row | None] = {}
        sums: dict[tuple[str, str], int] = {}
        for deed in self.deeds:
            city = deed.city or ""
            item = None if deed.amount % 2 == 0 else _item(deed)
            entries[deed.user, city, deed.amount] = item
            sums[deed.user, city] = sums.get((deed.user, city), 0) + deed.amount
        self.write(
            "accounts",
            "entries",
            _USER,
            [("city", pa.string()), ("size", pa.int32()), ("item", pa.struct(ITEM))],
            (
                {"user": user, "city": city, "size": size, "item": item}
                for (user, city, size), item in entries.items()
            ),
            kind="map",
            entry=["city", "size"],
        )
        self.write(
            "accounts",
            "sums",
            _USER,
            [("city", pa.string()), ("sum", pa.int64())],
            ({"user": user, "city": city, "sum": number} for (user, city), number in sums.items()),
            kind="map",
            entry="city",
        )

    def counter(
        self,
        uid: str,
        key: Sequence[tuple[str, pa.DataType]],
        key_of: Any,
        key_types: Mapping[str, str] | None = None,
    ) -> None:
        """Make the count of a counter, and its timers."""
        counts: dict[str, tuple[Row, list[int]]] = {}
        for deed in self.deeds:
            key_row = key_of(deed)
            counts.setdefault(repr(key_row), (key_row, []))[1].append(deed.number)
        rows = [row | {"count": len(numbers)} for row, numbers in counts.values()]
        self.write(uid, "count", key, [("count", pa.int64())], rows, key_types=key_types)
        registered = [(row, number) for row, numbers in counts.values() for number in numbers]
        for domain in ("event", "processing"):
            self.timers(uid, f"{domain} timers", key, registered, domain, LATER, key_types)

    def timers(
        self,
        uid: str,
        name: str,
        key: Sequence[tuple[str, pa.DataType]],
        registered: Iterable[tuple[Row, int]],
        domain: str,
        delay: int,
        key_types: Mapping[str, str] | None = None,
    ) -> None:
        """Make the timers that keys registered at events, and that have not fired yet."""
        watermark = self.deeds[-1].number * 1000
        times = ((row, fire_time(domain, delay, number)) for row, number in registered)
        self.write(
            uid,
            name,
            key,
            [("at", pa.int64())],
            [row | {"at": time} for row, time in times if time > watermark],
            kind="timers",
            entry="at",
            time_domain=domain,
            key_types=key_types,
        )

    def services(self) -> None:
        """Make the timers of two services with names of their own."""
        registered = [({"user": deed.user}, deed.number) for deed in self.deeds]
        services = (
            ("event", "cleanup", 4_500),
            ("event", "retry", 9_500),
            ("processing", "retry", 0),
        )
        for domain, service, delay in services:
            name = f"_timer_state/{domain}_{service}"
            self.timers("services", name, _USER, registered, domain, delay)

    def rules(self) -> None:
        """Make broadcast, union and split state."""
        item = pa.struct(ITEM)
        rules = {deed.user: _item(deed) for deed in self.deeds}
        tables = {
            "broadcast": (
                "rules",
                [{"user": user, "item": rule} for user, rule in rules.items()],
                [("user", pa.string()), ("item", item)],
            ),
            "union": ("log", [_item(deed) for deed in self.deeds], ITEM),
            "split": (
                "parts",
                [{"user": deed.user, "amount": deed.amount} for deed in self.deeds],
                [("user", pa.string()), ("amount", pa.int32())],
            ),
        }
        for mode, (name, rows, columns) in tables.items():
            table = pa.Table.from_pylist(rows, pa.schema(columns))
            self.store.bootstrap("rules", name, table, mode=mode)


_USER = [("user", pa.string())]


def write_tables(store: StateStore, deeds: Sequence[Deed], version: str) -> None:
    """Write the state of the job after some events into a store, each state as a table."""
    tables = _Tables(store, deeds)
    tables.accounts(version)
    spot = [("name", pa.string()), ("zone", pa.int32())]
    tables.counter(
        "by_class",
        [("spot", pa.struct(spot))],  # one column, because a field can be null
        lambda deed: {"spot": {"name": deed.city, "zone": abs(deed.amount) % 5}},
        {"spot": "Row"},
    )
    pair = [("user", pa.string()), ("amount", pa.int32())]
    tables.counter("by_tuple", pair, lambda deed: {"user": deed.user, "amount": deed.amount})
    tables.counter(
        "by_row",
        [("key", pa.struct([("city", pa.string()), ("amount", pa.int32())]))],
        lambda deed: {"key": {"city": deed.city, "amount": deed.amount}},
        {"key": "Row"},
    )
    tables.counter(
        "by_int", [("id", pa.int64())], lambda deed: {"id": deed.amount}, {"id": "Integer"}
    )
    tables.counter(
        "by_day",
        [("day", pa.date32())],
        lambda deed: {"day": dt.date(1970, 1, 1) + dt.timedelta(days=deed.amount)},
    )
    tables.services()
    tables.rules()
