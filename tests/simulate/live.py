"""A live query without Spark or a JVM: the micro-batch's logic is the product's.

As Spark does, it writes the source's end into ``offsets/`` before a micro-batch runs. After the
micro-batch it writes a file into ``commits/``. It syncs neither. After a restart it repeats the
last micro-batch, unless that is in ``commits/``. Each event is a row of its own, whose count is the
number of times that it was counted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql.types import LongType, StringType, StructField, StructType

from statestore.errors import StorageError
from statestore.storage import LocalStorage
from statestore.streaming import Changes, QueryOptions, QueryState, RetentionPolicy, StatefulQuery
from statestore.streaming.planned import planned
from tests.simulate.actors import NAME, UID, Actor, Run
from tests.simulate.documents import COUNT, KEY

__all__ = ["query"]

PACE = 2  # events per micro-batch
COLUMNS = StructType([StructField(KEY, StringType()), StructField(COUNT, LongType())])
SCHEMA = pa.schema([(KEY, pa.string()), (COUNT, pa.int64())])


@dataclass(frozen=True)
class Frame:
    """The part of a DataFrame that the query uses."""

    rows: pa.Table
    schema: StructType = COLUMNS

    @property
    def _jdf(self) -> Any:
        """Refuse calls into the JVM, as some hosted Sparks do."""
        raise Py4JError("there is no JVM")

    def persist(self) -> Frame:
        """Return the frame, which is already computed."""
        return self

    def unpersist(self) -> None:
        """Do nothing."""


class Query(StatefulQuery):
    """The query, with replacements for the parts that ask Spark for the events' keys and rows."""

    def _keys(self, events: Any, rows: Any, batch: Any, *_: Any) -> Any:
        return events.rows

    def _touched(self, name: str, step: Any) -> Any:
        if not self._has(step.restored, name):
            return Frame(SCHEMA.empty_table())
        touched = set(step.keys.column(KEY).to_pylist())
        stored = step.restored.keyed(UID, NAME).to_arrow(0).to_pylist()
        rows = [{KEY: one[KEY], COUNT: one[COUNT]} for one in stored if one[KEY] in touched]
        return Frame(pa.Table.from_pylist(rows, SCHEMA))


def _update(events: Any, states: Any, batch: Any) -> Any:
    before = {one[KEY]: one[COUNT] for one in states[NAME].rows.to_pylist()}
    keys = events.rows.column(KEY).to_pylist()
    rows = [{KEY: key, COUNT: before.get(key, 0) + 1} for key in keys]
    return {NAME: Changes(upserts=pa.Table.from_pylist(rows, SCHEMA))}


def query(run: Run, actor: Actor) -> None:
    """Process the available events, one micro-batch after another, from Spark's position on."""
    location = run.world.folder / f"location-{actor.store}"
    retain = actor.option("retain", None)
    made = Query(
        store=run.world.store(actor.store),
        operator=UID,
        key=KEY,
        states={NAME: QueryState(COLUMNS, max_parallelism=2)},
        update=_update,
        parallelism=1,
        options=QueryOptions(retention=RetentionPolicy(retain) if retain else None),
    )
    for folder in ("offsets", "commits"):
        (location / folder).mkdir(parents=True, exist_ok=True)
    if not (location / "metadata").exists():
        (location / "metadata").write_text(json.dumps({"id": run.world.new_uuid().hex}))
    produced = actor.option("produced", 6)
    while _micro_batch(run, actor, made, location, produced):
        continue


def _micro_batch(
    run: Run, actor: Actor, made: StatefulQuery, location: Path, produced: int
) -> bool:
    last = max((int(path.name) for path in (location / "offsets").iterdir()), default=-1)
    done = last >= 0 and (location / "commits" / str(last)).exists()
    number = last + 1 if last < 0 or done else last
    begin = _end(location, number - 1)
    planned_before = location / "offsets" / str(number)
    if not planned_before.exists():
        if begin >= produced:
            return False
        end = min(begin + actor.option("pace", PACE), produced)
        planned_before.write_text(f"v1\n{json.dumps({'batchTimestampMs': 1})}\n{end}")
    end = _end(location, number)
    keys = [f"event-{place}" for place in range(begin, end)]
    events = pa.Table.from_pylist([{KEY: key, COUNT: 0} for key in keys], SCHEMA)
    run.world.scheduler.point("spark", f"micro-batch {number}")
    made.process(Frame(events), planned(LocalStorage(str(location)), number))  # type: ignore[arg-type]
    run.world.scheduler.point("spark", f"done with micro-batch {number}")
    run.world.log.succeeded()
    (location / "commits" / str(number)).write_text("v1\n{}")
    # Spark's position is now after these events; they will not be delivered again.
    run.world.checker.counted(actor.store, keys)
    return True


def _end(location: Path, number: int) -> int:
    path = location / "offsets" / str(number)
    if number < 0 or not path.exists():
        return 0
    lines = path.read_text().splitlines()
    if len(lines) < 3 or not (location / "metadata").read_text():
        raise StorageError(f"{location} is broken: Spark does not start")
    return int(lines[2])
