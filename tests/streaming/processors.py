"""Processors as users write them for Spark's ``transformWithState``, in both of its forms.

The output never depends on the order of keys. It depends on the order of events only if a
micro-batch is one file, whose order Spark keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

__all__ = ["OUT", "PROCESSORS", "Base"]

OUT = "k string, what string, n long"
MINUTE = 60_000


def milliseconds(at: datetime) -> int:
    """Return the UTC time of an event in milliseconds."""
    return int(pd.Timestamp(at, tz=None if at.tzinfo else "UTC").timestamp() * 1000)


class Base(StatefulProcessor):
    """The common parts of all processors: rows in either form, and output in the same form."""

    def __init__(self, pandas: bool) -> None:
        """Choose one of the two forms."""
        self.pandas = pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare nothing."""
        self.handle = handle

    def each(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield the events."""
        for row in rows:
            if self.pandas:
                yield from row.itertuples(index=False)
            else:
                yield row

    def out(self, key: Any, what: object, n: int = 0) -> Iterator[Any]:
        """Return an output row in the chosen form."""
        row = {"k": key[0], "what": str(what), "n": n}
        yield pd.DataFrame([row]) if self.pandas else Row(**row)

    def close(self) -> None:
        """Do nothing."""


class Counts(Base):
    """The number of events of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a value."""
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Count the events."""
        exists = self.count.exists()
        (n,) = self.count.get() or (0,)
        n += sum(1 for _ in self.each(rows))
        self.count.update((n,))
        if n > 30:
            self.count.clear()
        yield from self.out(key, exists, n)


class Sessions(Base):
    """Sessions by event time: a session ends after five minutes without an event."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a value for the session, and its events."""
        self.handle = handle
        self.session = handle.getValueState("session", "first timestamp, last long, n int")
        self.ids = handle.getListState("ids", "id int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add events to the session."""
        first, last, n = self.session.get() or (None, 0, 0)
        for row in self.each(rows):
            at = pd.Timestamp(row.t).tz_localize(None).to_pydatetime()
            first = at if first is None else min(first, at)
            last, n = max(last, milliseconds(row.t)), n + 1
            self.ids.appendValue((int(row.id),))
        self.session.update((first, last, n))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + 5 * MINUTE)
        yield from self.out(key, timerValues.getCurrentWatermarkInMs(), n)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """End the session."""
        found = self.session.get()
        assert found is not None
        first, last, n = found
        ids = [one for (one,) in self.ids.get()]
        self.session.clear()
        self.ids.clear()
        yield from self.out(key, (str(first)[:19], last, sorted(ids), len(ids)), n)


class Alarms(Base):
    """Several timers per key: in the past, at the same time, deleted, and set by another timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a list of fired timers."""
        self.handle = handle
        self.rang = handle.getListState("rang", "at long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Set timers around the watermark."""
        mark = timerValues.getCurrentWatermarkInMs()
        for row in self.each(rows):
            at = milliseconds(row.t)
            self.handle.registerTimer(at)
            self.handle.registerTimer(at + int(row.v) * MINUTE)
            self.handle.registerTimer(max(mark - int(row.id), 0))
            if row.v % 3 == 0:
                self.handle.deleteTimer(at)
        yield from self.out(key, sorted(self.handle.listTimers()))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Record the timer, and set the next one."""
        at = expiredTimerInfo.getExpiryTimeInMs()
        if at % 7 == 0:
            self.handle.registerTimer(at + 20 * MINUTE)
        if at % 11 == 0:
            self.handle.registerTimer(at)
        self.rang.appendValue((at,))
        yield from self.out(key, at, sum(1 for _ in self.rang.get()))


class Once(Base):
    """Each id once, until its TTL ends."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the ids."""
        self.seen = handle.getMapState("seen", "id int", "v long", 86_400_000)
        self.brief = handle.getMapState("brief", "id int", "v long", 1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Emit the new ids."""
        for row in self.each(rows):
            if self.brief.containsKey((int(row.id),)):
                yield from self.out(key, f"again {row.id}")
            self.brief.updateValue((int(row.id),), (int(row.v),))
            if not self.seen.containsKey((int(row.id),)):
                self.seen.updateValue((int(row.id),), (int(row.v),))
                yield from self.out(key, row.id)


class Top(Base):
    """The three largest amounts of a key, in a list that is replaced each time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the list."""
        self.top = handle.getListState("top", "price decimal(10,2), day date, blob binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Keep the largest amounts."""
        found = [tuple(one) for one in self.top.get()]
        found += [(row.price, row.day, bytes(row.blob)) for row in self.each(rows)]
        found = sorted(found, key=lambda one: (one[0], str(one[1]), one[2]))[-3:]
        self.top.put(found)
        yield from self.out(key, [(str(p), str(d), bytes(b).hex()) for p, d, b in found])


class Joins(Base):
    """Two kinds of events in one processor: each is paired with the other kind's events."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a list for each kind."""
        self.left = handle.getListState("left", "id int")
        self.right = handle.getListState("right", "id int, v long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Emit the pairs."""
        for row in self.each(rows):
            if row.id % 2:
                pairs = [(int(row.id), one) for (one, _) in self.right.get()]
                self.left.appendList([(int(row.id),)])
            else:
                pairs = [(one, int(row.id)) for (one,) in self.left.get()]
                self.right.appendValue((int(row.id), int(row.v)))
            for pair in pairs:
                yield from self.out(key, pair)
        if sum(1 for _ in self.left.get()) > 20:
            self.left.clear()


class Funnel(Base):
    """The steps of a key in a map, with the count of each."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the steps."""
        steps = "step int, kind string"
        self.steps = handle.getMapState("steps", steps, "n long, last array<int>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Count steps; the seventh of a kind removes it, and step 4 removes all."""
        for row in self.each(rows):
            step = int(row.id) % 5, str(int(row.v) % 2)
            if step[0] == 4 and row.v > 90:
                self.steps.clear()
            n, last = self.steps.getValue(step) or (0, [])
            self.steps.updateValue(step, (n + 1, [*last, int(row.v)][-2:]))
            if n == 6:
                self.steps.removeKey(step)
        entries = sorted((tuple(a), (b[0], list(b[1]))) for a, b in self.steps.iterator())
        keys = sorted(map(tuple, self.steps.keys()))
        assert [a for a, _ in entries] == keys
        assert sorted(n for n, _ in self.steps.values()) == sorted(b[0] for _, b in entries)
        yield from self.out(key, entries, len(entries))


class Clocked(Base):
    """Timers by processing time: in the past, now, and far in the future."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a value that counts the fired timers."""
        self.handle = handle
        self.fired = handle.getValueState("fired", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Set timers."""
        now = timerValues.getCurrentProcessingTimeInMs()
        n = sum(1 for _ in self.each(rows))
        for at in (now - n, now, now + n, now + 10**9):
            self.handle.registerTimer(at)
        yield from self.out(key, [at > now for at in sorted(self.handle.listTimers())], n)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Count the fired timer."""
        (n,) = self.fired.get() or (0,)
        self.fired.update((n + 1,))
        is_past = expiredTimerInfo.getExpiryTimeInMs() <= timerValues.getCurrentProcessingTimeInMs()
        yield from self.out(key, is_past, n)


class Lives(Base):
    """A value, a list and a map with short, long or no TTL, by processing time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the three states."""
        for name, life in (("soon", 1), ("late", 86_400_000)):
            setattr(self, f"{name}Value", handle.getValueState(f"{name}Value", "n long", life))
            setattr(self, f"{name}List", handle.getListState(f"{name}List", "id int", life))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add to all three."""
        seen = []
        for row in self.each(rows):
            for name in ("soon", "late"):
                value, listed = getattr(self, f"{name}Value"), getattr(self, f"{name}List")
                (n,) = value.get() or (0,)
                value.update((n + 1,))
                if row.v % 2:
                    listed.appendValue((int(row.id),))
                seen.append((name, n, value.exists(), [one for (one,) in listed.get()]))
        yield from self.out(key, seen)


class Kinds(Base):
    """Values of many types, with nulls, inside structs, arrays and maps."""

    SCHEMA = (
        "a boolean, b byte, c short, d float, e double, f decimal(10,2), g date, h timestamp, "
        "i binary, j array<string>, k2 map<string,int>, l struct<x:int,y:array<long>>, m string"
    )

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a value, and a map by day."""
        self.kinds = handle.getValueState("kinds", self.SCHEMA)
        self.byDay = handle.getMapState("byDay", "day date", "h timestamp, f decimal(10,2)")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Emit the previous event, and store the last event in its place."""
        before = self.kinds.get()
        text = "none" if before is None else str([_text(one) for one in before])
        for row in self.each(rows):
            at = pd.Timestamp(row.t).to_pydatetime().replace(tzinfo=None)
            none = row.v % 4 == 0
            value = (
                *(bool(row.v % 2), int(row.v) % 100, None if none else 7),
                *(float(row.v) / 2, None if none else float(row.v) / 3),
                *(row.price, None if none else row.day, None if none else at),
                *(bytes(row.blob), [str(row.id), None], {"x": int(row.id), "none": None}),
                *((int(row.id), [1, 2]), None if none else "text"),
            )
            self.kinds.update(value)
            self.byDay.updateValue((row.day,), (at, row.price))
        days = sorted((str(a[0]), str(b[0])[:19], str(b[1])) for a, b in self.byDay.iterator())
        yield from self.out(key, (text, days))


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, dict):
        return str(sorted(value.items()))
    if isinstance(value, Decimal | date):
        return str(value)
    return str(tuple(value)) if isinstance(value, Row) else str(value)


class Begun(Counts):
    """Counts that continue from an earlier job."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Take over the count."""
        n = int(initialState["n"].sum()) if self.pandas else initialState.n
        (before,) = self.count.get() or (0,)
        self.count.update((before + n,))


PROCESSORS: dict[str, tuple[type[Base], str, str]] = {
    "counts": (Counts, "Update", "None"),
    "sessions": (Sessions, "Append", "EventTime"),
    "alarms": (Alarms, "Update", "EventTime"),
    "once": (Once, "Append", "ProcessingTime"),
    "top": (Top, "Update", "None"),
    "joins": (Joins, "Append", "None"),
    "funnel": (Funnel, "Update", "EventTime"),
    "clocked": (Clocked, "Update", "ProcessingTime"),
    "lives": (Lives, "Update", "ProcessingTime"),
    "kinds": (Kinds, "Update", "None"),
    "begun": (Begun, "Update", "None"),
}
