"""The Python functions of the queries: functions of groups, and processors with states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

WAIT = 300_000  # milliseconds after a key's last event until its state is removed
DAY = 24 * 60 * 60 * 1000


def running(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count and sum the rows of a key."""
    n, total = state.get if state.exists else (0, 0)
    for frame in frames:
        n, total = n + len(frame), total + int(frame["v"].sum())
    state.update((n, total))
    yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


def waiting(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key until none arrived for some time; then emit the count and
    remove it.
    """
    n, last = state.get if state.exists else (0, 0)
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-n], "last": [last]})
        return
    for frame in frames:
        n, last = n + len(frame), max(last, milliseconds(frame))
    state.update((n, last))
    state.setTimeoutTimestamp(max(last, state.getCurrentWatermarkMs()) + WAIT)
    yield pd.DataFrame({"k": [key[0]], "n": [n], "last": [last]})


def milliseconds(frame: pd.DataFrame) -> int:
    """Return the latest time in a frame of events, in UTC."""
    return int(frame["t"].max().timestamp() * 1000)


class Counting(StatefulProcessor):
    """The number of events of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the events of a key."""
        (n,) = self.n.get() or (0,)
        n += sum(map(len, rows))
        self.n.update((n,))
        yield pd.DataFrame({"k": [str(key[0])], "n": [n]})

    def close(self) -> None:
        """Nothing needs to be closed."""


class Ending(StatefulProcessor):
    """A state that is emitted after each micro-batch with events, and that a timer removes."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.handle = handle
        self.last = handle.getValueState("last", "last long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the events of a key, and set its timer relative to the last event."""
        (last,) = self.last.get() or (0,)
        for frame in rows:
            last = max(last, milliseconds(frame))
            self.add(frame)
        self.last.update((last,))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + WAIT)
        # A second, later timer of the same key, which has no effect.
        self.handle.registerTimer(last + 10 * WAIT)
        yield pd.DataFrame({"k": [key[0]], "what": ["events"], "has": [self.text()]})

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        """Emit the state, and remove it."""
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame({"k": [key[0]], "what": [f"timer {at}"], "has": [self.text()]})
        self.last.clear()
        self.clear()

    def close(self) -> None:
        """Nothing needs to be closed."""

    def add(self, frame: pd.DataFrame) -> None:
        """Add some events of a key."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the state as text."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove the state."""
        raise NotImplementedError


class Listed(Ending):
    """A list in the order of the events."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        super().init(handle)
        self.seen = handle.getListState("seen", "id int, v long")

    def add(self, frame: pd.DataFrame) -> None:
        """Add some events of a key."""
        for row in frame.itertuples():
            self.seen.appendValue((int(row.id), int(row.v)))

    def text(self) -> str:
        """Return the state as text."""
        return str(list(self.seen.get()))

    def clear(self) -> None:
        """Remove the state."""
        self.seen.clear()


class Living(StatefulProcessor):
    """A value, a list and a map with a TTL of ten days in processing time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states."""
        life = 10 * DAY
        self.handle = handle
        self.n = handle.getValueState("n", "n long", life)
        self.seen = handle.getListState("seen", "v long", life)
        self.byId = handle.getMapState("byId", "id int", "n long", life)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the events of a key, and set a timer that fires after the end of every test."""
        for frame in rows:
            (n,) = self.n.get() or (0,)
            self.n.update((n + len(frame),))
            for row in frame.itertuples():
                self.seen.appendValue((int(row.v),))
                (n,) = self.byId.getValue((int(row.id) % 7,)) or (0,)
                self.byId.updateValue((int(row.id) % 7,), (n + 1,))
        if not list(self.handle.listTimers()):
            now = timerValues.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(now + 30 * DAY)
        has = str((self.n.get(), list(self.seen.get()), sorted(self.byId.iterator())))
        yield pd.DataFrame({"k": [key[0]], "what": ["events"], "has": [has]})

    def close(self) -> None:
        """Nothing needs to be closed."""
