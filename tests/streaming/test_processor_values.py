"""Values that a ``StatefulProcessor`` returns unchanged, and values that are refused."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema

from statestore.errors import ProcessorError
from statestore.spark.state_writer import frame_of
from statestore.streaming import MicroBatch, ProcessorOptions, StatefulQuery
from statestore.streaming.processor import Processing
from tests.interop.spark.queries import settings
from tests.streaming.every_type import IN_PYTHON, every_type, ints
from tests.streaming.processors import Base
from tests.streaming.world import World
from tests.support.bits import bits

pytestmark = pytest.mark.spark

BERLIN = {"spark.sql.session.timeZone": "Europe/Berlin"}
ROWS = every_type(IN_PYTHON).drop_columns(["user", "page"])
SCHEMA = from_arrow_schema(ROWS.schema, prefer_timestamp_ntz=True)


def query_of(world: World, processor: Base, output_schema: Any, given: list[pa.Table]) -> Any:
    """Return a query of a processor whose output is appended to a list."""
    return StatefulQuery.of_processor(
        store=world.store,
        operator="op",
        processor=processor,
        processor_options=ProcessorOptions(
            output_schema=output_schema,
            output_mode="Update",
            time_mode="None",
            pandas=processor.pandas,
            max_parallelism=8,
        ),
        key="user",
        parallelism=2,
        output=lambda frame, _: given.append(frame.toArrow()),
    )


def equal(found: pa.Table, rows: pa.Table) -> None:
    """Check that all values are the same, bit for bit."""
    assert found.num_rows == rows.num_rows
    for column, name in zip(found.columns, rows.schema.names, strict=True):
        own = rows.column(name)
        assert bits(column.cast(own.type)) == bits(own), name


class Frames(Base):
    """A processor that returns its frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Emit the frames, and an empty one."""
        yield pd.DataFrame()
        for frame in rows:
            assert str(frame.dtypes["twice"]) == "timestamp[us, tz=UTC][pyarrow]"
            yield frame


@pytest.mark.long
def test_frames_keep_the_values_of_events(world: World) -> None:
    """For every type and time zone, also times that Python and pandas cannot represent."""
    rows, given = every_type(), list[pa.Table]()
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    with settings(world.spark, BERLIN):
        events = frame_of(world.spark, rows)
        query_of(world, Frames(pandas=True), schema, given).process(events, MicroBatch("q", 0))
    equal(given[0].sort_by("page"), rows)


class Keeps(Base):
    """A value, a list and a map of every type, in a worker in Berlin's time zone."""

    def init(self, handle: Any) -> None:
        """Declare the states."""
        self.before = os.environ.get("TZ", "")
        self.clock("Europe/Berlin")
        self.value = handle.getValueState("value", SCHEMA)
        self.list = handle.getListState("list", SCHEMA)
        self.map = handle.getMapState("map", "page string", SCHEMA)
        self.times = handle.getMapState("times", "at timestamp", "n int")

    def clock(self, zone: str) -> None:
        """Set the time zone of the process."""
        os.environ["TZ"] = zone
        if not zone:
            del os.environ["TZ"]
        time.tzset()

    def close(self) -> None:
        """Restore the time zone."""
        self.clock(self.before)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Store new values; write the stored ones again, and emit them."""
        if not self.value.exists():
            for row in rows:
                values = tuple(row[name] for name in SCHEMA.names)
                self.value.update(values)
                self.list.appendValue(values)
                self.map.updateValue((row.page,), values)
                if row.twice:
                    self.times.updateValue((row.twice,), (row.twice.astimezone(UTC).hour,))
            return
        self.value.update(self.value.get())
        self.list.put(list(self.list.get()))
        for state in (self.map, self.times):
            for entry, value in list(state.iterator()):
                state.updateValue(entry, value)
        for values in self.list.get():
            yield Row(**dict(zip(SCHEMA.names, values, strict=True)))


@pytest.mark.long
def test_values_that_are_written_again_stay_the_same(world: World) -> None:
    """For every type, in a repeated hour, and far from now; the output is the same too."""
    given: list[pa.Table] = []
    rows = every_type(IN_PYTHON)
    with settings(world.spark, BERLIN):
        for number in (0, 1):
            query = query_of(world, Keeps(pandas=False), SCHEMA, given)
            query.process(frame_of(world.spark, rows), MicroBatch("q", number))
            restored = world.store.restore(parallelism=1)
            for name, key in (("list", 2), ("map", 2)):
                found = restored.keyed("op", name).to_arrow(0)
                found = found.drop_columns(["key_group"])
                found = found.sort_by(found.schema.names[1])
                assert [str(one) for one in found.column(0).to_pylist()] == ["ann"] * 3
                equal(found.select(range(key, found.num_columns)), ROWS)
            times = restored.keyed("op", "times").to_arrow(0).sort_by("n").to_pylist()
            assert [row["n"] for row in times] == [0, 1]
    equal(given[1], ROWS)


class Wrong(Base):
    """A processor that emits or stores the value that the test selects."""

    yields: Any = ()
    keeps: Any = None

    def init(self, handle: Any) -> None:
        """Declare a state."""
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Emit or store the value."""
        if self.keeps is not None:
            self.total.update((self.keeps,))
        for _ in rows:
            pass
        yield from self.yields


AT = r"the processor of operator 'op' .*in micro-batch 0.*key \('a',\).*"


@pytest.mark.parametrize(
    ("pandas", "own", "message"),
    [
        (False, {"yields": [Row(total=2.5)]}, r"2\.5 in the column 'total' of type long"),
        pytest.param(
            False,
            {"yields": [Row(total=1, more=2)]},
            "has the column 'more'",
            id="another column",
            marks=pytest.mark.long,
        ),
        pytest.param(
            False,
            {"yields": [1]},
            r"yields int instead of Row",
            id="no row",
            marks=pytest.mark.long,
        ),
        pytest.param(
            False,
            {"keeps": 2.5},
            r"of state 'total' has 2\.5 in the column 'total'",
            id="a state",
            marks=pytest.mark.long,
        ),
        (True, {"yields": [pd.DataFrame({"total": [2.0**60]})]}, r"1\.15\S+ in the column 'total'"),
        pytest.param(
            True,
            {"yields": [pd.DataFrame({"more": [1]})]},
            r"yields the columns \(more\)",
            id="another column in pandas",
            marks=pytest.mark.long,
        ),
        pytest.param(
            True,
            {"yields": [1]},
            r"yields int instead of pandas DataFrames",
            id="no frame",
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_error_names_operator_key_column_and_value(
    world: World, pandas: bool, own: dict[str, Any], message: str
) -> None:
    """Nothing is committed."""
    processor = Wrong(pandas)
    query = query_of(world, processor, "total long", [])
    assert isinstance(query.update, Processing)
    for name, value in own.items():
        setattr(processor, name, value)
    query = replace(query, update=replace(query.update, processor=processor))
    with pytest.raises(ProcessorError, match=AT + message):
        query.process(world.frame("a"), MicroBatch("q", 0))
    assert world.store.checkpoints() == ()


@pytest.mark.long
def test_events_that_python_cannot_represent_are_refused(world: World) -> None:
    """The error has the key, the column and the value; as frames they are accepted."""
    at = ints([0, 2**58], pa.timestamp("us", "UTC"))
    rows = pa.table({"user": ["a", "b"], "at": at})
    query = query_of(world, Wrong(pandas=False), "total long", [])
    message = (
        r"'op' in micro-batch 0 .*events with the key \('b',\): column 'at'.* has the value '11103-"
    )
    with pytest.raises(ProcessorError, match=message):
        query.process(frame_of(world.spark, rows), MicroBatch("q", 0))
    query_of(world, Wrong(pandas=True), "total long", []).process(
        frame_of(world.spark, rows), MicroBatch("q", 0)
    )
