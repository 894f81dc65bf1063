"""Run the old and the new version of a Spark query in the folder of a rehearsal.

Both versions process the same micro-batches. The old version plans them, and the new one gets each
of them as it is in the offset log: the ends of the sources, the time and the watermark. If the old
version does not run, the new one gets the micro-batches that the job itself has planned.

The sources are read as Spark always reads them. Spark commits no offsets to a consumer group. A
source whose options change something outside is refused. A sink is never called.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from statestore.catalog.catalog import Checkpoint
from statestore.contract.rehearsal import (
    BASE,
    LOCATION,
    NEW,
    OLD,
    OUTPUT,
    OUTPUT_BATCH,
    OUTPUT_ROW,
    STORE,
    Rehearsal,
    RehearsalPlan,
    Request,
    begin,
    compare,
    finish,
    finished_batch,
    fork,
    prepare_once,
    stored_plan,
)
from statestore.contract.spark_side import FILES, KAFKA, NUMBERS, read_end
from statestore.errors import InvalidArgumentError
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_record import QUERY
from statestore.interop.spark.import_state import import_checkpoint
from statestore.interop.spark.location import NO_END, CheckpointLocation, OffsetLogEntry
from statestore.interop.spark.location_writer import Target
from statestore.interop.spark.operator_reader import SHUFFLE_PARTITIONS
from statestore.restore.row_files import output_file
from statestore.spark.error_cause import SPARK_ERRORS, describe_cause
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.planned import MicroBatch, relation_options, streaming_sources
from statestore.streaming.progress import Progress
from statestore.streaming.stateful_query import StatefulQuery

_CHANGES_OUTSIDE = {
    "kafka.group.id": "its readers join the consumer group of the job",
    "cleansource": "it removes the files that it has read",
}


class Limit:
    """The last micro-batch of a run; the next one ends the run."""

    def __init__(self, last: int | None) -> None:
        """Store the number of the micro-batch; None for no limit."""
        self._last, self.is_exceeded = last, False

    def check(self, number: int) -> None:
        """Raise InvalidArgumentError for a later micro-batch."""
        if self._last is not None and number > self._last:
            self.is_exceeded = True
            raise InvalidArgumentError(f"the rehearsal ends with micro-batch {self._last}")


@dataclass(frozen=True, kw_only=True)
class _LimitedQuery(StatefulQuery):
    limit: Limit

    def process(self, events: DataFrame, batch: MicroBatch) -> Any:
        self.limit.check(batch.number)
        return super().process(events, batch)


@dataclass(frozen=True)
class StoreVersion:
    """A query that keeps its state in a store. Its store, output and callbacks are replaced."""

    query: StatefulQuery
    events: DataFrame

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the query's key."""
        return (self.query.key,) if isinstance(self.query.key, str) else (*self.query.key,)

    def writer(self, session: SparkSession, side: Path, limit: Limit) -> DataStreamWriter:
        """Return the query with the state, the location and the output of a folder."""
        members = {
            one.name: getattr(self.query, one.name) for one in fields(self.query) if one.init
        }
        members |= {
            "store": StateStore.open(str(side / STORE), spark=session),
            "options": replace(self.query.options, retention=None, on_commit=None),
            "limit": limit,
        }
        if self.query.output is not None:
            members["output"] = lambda rows, batch: _write_output(side, rows, batch.number)
        return _LimitedQuery(**members).writer(self.events, str(side / LOCATION))


@dataclass(frozen=True)
class SparkVersion:
    """A query that keeps its state in Spark."""

    events: DataFrame
    output_mode: str

    @property
    def key(self) -> tuple[str, ...]:
        """No columns: a plan can have several keys, and rename them."""
        return ()

    def writer(self, session: SparkSession, side: Path, limit: Limit) -> DataStreamWriter:
        """Return the query with the location and the output of a folder."""

        def write(rows: DataFrame, number: int) -> None:
            limit.check(number)
            _write_output(side, rows, number)

        writer = self.events.writeStream.outputMode(self.output_mode).foreachBatch(write)
        return writer.option("checkpointLocation", (side / LOCATION).resolve().as_uri())


Version = StoreVersion | SparkVersion


def _write_output(side: Path, rows: DataFrame, number: int) -> None:
    """Write the rows of a micro-batch as a file of the rehearsal; a repeated one replaces it."""
    names = [name.lower() for name in rows.columns]
    taken = {OUTPUT_BATCH, OUTPUT_ROW} & {*names}
    if taken or len({*names}) < len(names):
        raise InvalidArgumentError(
            f"the output has the columns {', '.join(rows.columns)}: a rehearsal needs different "
            f"names, none of which is {OUTPUT_BATCH} or {OUTPUT_ROW}"
        )
    table = rows.toArrow()
    table = table.append_column(OUTPUT_BATCH, pa.array([number] * table.num_rows, pa.int64()))
    (side / OUTPUT).mkdir(exist_ok=True)
    with output_file(side / OUTPUT / f"{number}.parquet", replace=True) as file:
        pq.write_table(table, file)


_Load = Callable[[], Checkpoint]


class _StoreJob:
    """The state of a job in its store."""

    engine = "store"

    def __init__(self, request: Request, store: StateStore, query: StatefulQuery) -> None:
        self._store = store
        self._operator = query.options.source
        self.source = store.url
        self.location = CheckpointLocation(open_storage(request.location))

    def begin(self, base: str | None) -> dict[str, Any]:
        checkpoint = self._store.checkpoint(base or "latest")
        query, batch = self._progress(checkpoint)
        if query != self.location.query_id:
            raise InvalidArgumentError(
                f"{self.location.url} belongs to query {self.location.query_id}, but checkpoint "
                f"{checkpoint.checkpoint_id} of {self.source} to query {query}: pass the "
                "checkpoint location of that query"
            )
        token = checkpoint.manifest.writer.token
        number = checkpoint.checkpoint_id
        return {"base": number, "made_by": token, "query": query, "batch": batch}

    def _progress(self, checkpoint: Checkpoint) -> tuple[str, int]:
        restored = self._store.restore(checkpoint=checkpoint)
        queries = Progress.of(restored, self._operator).queries
        if not queries:
            raise InvalidArgumentError(
                f"checkpoint {checkpoint.checkpoint_id} of {self.source} has no progress of a "
                f"query under operator {self._operator!r}: name a checkpoint that the query made"
            )
        return queries[-1]

    def prepare(self, plan: RehearsalPlan, side: Path) -> None:
        fork(self._store.checkpoint(plan.base), side, self._store)
        target = Target(open_storage(str(side / LOCATION)), plan.batch)
        target.begin()
        for name, content in self.location.files(plan.batch):
            target.put(name, content)
        target.finish()

    def later(self, plan: RehearsalPlan, against: str | None) -> tuple[int, _Load]:
        checkpoint = self._store.checkpoint(against or "latest")
        query, batch = self._progress(checkpoint)
        if query != plan.query:
            raise InvalidArgumentError(
                f"checkpoint {checkpoint.checkpoint_id} is of query {query}, but checkpoint "
                f"{plan.base} of query {plan.query}: name a checkpoint of one query"
            )
        return batch, lambda: checkpoint

    def result(self, side: Path, batch: int) -> Checkpoint:
        return StateStore.open(str(side / STORE)).checkpoint()


class _SparkJob:
    """The state of a query in its checkpoint location."""

    engine = "spark"

    def __init__(self, session: SparkSession, request: Request) -> None:
        self._session, self._folder = session, request.folder
        self.location = CheckpointLocation(open_storage(request.location))
        self.source = self.location.url

    def begin(self, base: str | None) -> dict[str, Any]:
        batch = self.location.batch(_batch_number(base))
        return {"base": batch, "made_by": "", "query": self.location.query_id, "batch": batch}

    def prepare(self, plan: RehearsalPlan, side: Path) -> None:
        base = StateStore.open(str(self._folder / BASE), spark=self._session)
        import_checkpoint(self._session, self.source, base, batch=plan.batch)
        partitions = int(self.location.plan(plan.batch).settings[SHUFFLE_PARTITIONS])
        export_checkpoint(base, str(side / LOCATION), partitions=partitions)

    def later(self, plan: RehearsalPlan, against: str | None) -> tuple[int, _Load]:
        batch = self.location.batch(_batch_number(against))
        return batch, partial(self._imported, self.source, self._folder / OLD, batch)

    def result(self, side: Path, batch: int) -> Checkpoint:
        return self._imported(str(side / LOCATION), side, batch)

    def _imported(self, location: str, side: Path, batch: int) -> Checkpoint:
        store = StateStore.open(str(side / STORE), spark=self._session)
        import_checkpoint(self._session, location, store, batch=batch)
        return store.checkpoint()


def _batch_number(text: str | None) -> int | None:
    if text is None or text == "latest":
        return None
    if not text.isdecimal():
        raise InvalidArgumentError(f"{text!r} is not the number of a micro-batch of the query")
    return int(text)


@dataclass(frozen=True)
class QueryRehearsal:
    """Runs the versions of a query in a session.

    ``open_version`` loads a version for the time of its run. ``open_store`` opens the store of a
    job that has one. ``label`` describes a version, so that another one is recognized.
    """

    session: SparkSession
    open_version: Callable[[str], AbstractContextManager[Version]]
    open_store: Callable[[], StateStore]
    label: Callable[[str], str]

    def run(self, request: Request) -> Rehearsal:
        """Run the new version, and the old one if it is given, and compare the results.

        Raises:
            InvalidArgumentError: If a version fails, or what is named does not fit together.
            StateStoreError: If state cannot be read, or the folder cannot be written.
        """
        job, key = self._find_job(request)
        plan = self._plan(job, request)
        begin(request.folder, plan)
        old, new = request.folder / OLD, request.folder / NEW
        last, planned, load_old = self._run_old(job, plan, request)
        prepare_once(new, partial(job.prepare, plan, new))
        with self.open_version(request.new) as version:
            self._replay(version, new, planned, range(plan.batch + 1, last + 1))
        finish(new, last)
        difference, unknown = compare(
            (load_old(), job.result(new, last)),
            replace(
                request.comparison,
                output_key=request.comparison.output_key or key,
                left_out=QUERY if job.engine == "spark" else None,
            ),
            None if request.old is None else (old, new),
        )
        return Rehearsal(
            plan=plan,
            folder=str(request.folder),
            batches=(plan.batch + 1, last),
            difference=difference,
            output_unknown=unknown,
        )

    def _run_old(
        self, job: _StoreJob | _SparkJob, plan: RehearsalPlan, request: Request
    ) -> tuple[int, CheckpointLocation, _Load]:
        """Run the old version, if it is given.

        Returns the last micro-batch, where it is planned, and a function for the old state.
        """
        side, planned, remedy = request.folder / OLD, job.location, "name an earlier CHECKPOINT"
        if request.old is None or request.against is not None:
            last, load = job.later(plan, request.against)
        if request.old is not None:
            prepare_once(side, partial(job.prepare, plan, side))
            with self.open_version(request.old) as version:
                _refuse_changes_outside(version)
                if request.against is not None:
                    self._replay(version, side, planned, range(plan.batch + 1, last + 1))
                elif request.until:
                    last = plan.batch + 1
                    planned = _plan_until(side, last, request.until)
                    self._replay(version, side, planned, (last,))
                else:
                    last = self._run_available(version, side, plan)
                    planned, remedy = _location(side), "the sources have no new events"
            load = partial(job.result, side, last)
        if last <= plan.batch:
            raise InvalidArgumentError(f"no micro-batch follows {plan.batch}: {remedy}")
        return last, planned, load

    def _find_job(self, request: Request) -> tuple[_StoreJob | _SparkJob, tuple[str, ...]]:
        """Return where the job keeps its state, and the key of its output."""
        with self.open_version(request.new) as version:
            _refuse_changes_outside(version)
            if isinstance(version, StoreVersion):
                return _StoreJob(request, self.open_store(), version.query), version.key
            return _SparkJob(self.session, request), version.key

    def _plan(self, job: _StoreJob | _SparkJob, request: Request) -> RehearsalPlan:
        stored = stored_plan(request.folder)
        if stored is None or request.base is not None:
            start = job.begin(request.base)
        else:  # the job may have removed the checkpoint since
            start = {name: getattr(stored, name) for name in ("base", "made_by", "query", "batch")}
        old = "the job" if request.old is None else self.label(request.old)
        return RehearsalPlan(
            engine=job.engine,
            source=job.source,
            **start,
            old=request.old_label(old),
            new=self.label(request.new),
            batches=request.batches,
        )

    def _run_available(self, version: Version, side: Path, plan: RehearsalPlan) -> int:
        """Run a version on the available events; return the number of its last micro-batch."""
        last = finished_batch(side)
        if last is not None:
            return last
        limit = Limit(None if plan.batches is None else plan.batch + plan.batches)
        writer = version.writer(self.session, side, limit)
        _run(writer.trigger(availableNow=True), limit, side)
        last = max(_location(side).committed, default=plan.batch)
        finish(side, last)
        return last

    def _replay(
        self, version: Version, side: Path, planned: CheckpointLocation, numbers: Iterable[int]
    ) -> None:
        """Run a version on micro-batches that another location has planned, one at a time."""
        location = _location(side)
        for name in planned.storage.list("sources"):
            location.storage.put_if_absent(name, planned.read_content(name))
        for number in numbers:
            if number in location.committed:
                continue
            planned.plan(number)  # refuses a broken one, before Spark does
            # An export has settings of its own, such as the codec of the state's files.
            before = OffsetLogEntry.parse(location.read_content(f"offsets/{number - 1}"))
            entry = OffsetLogEntry.parse(planned.read_content(f"offsets/{number}"))
            _write_plan(side, number, entry.with_conf(before.conf))
            limit = Limit(number)
            writer = version.writer(self.session, side, limit)
            _run(writer.trigger(once=True), limit, side)
            location = _location(side)


def _location(side: Path) -> CheckpointLocation:
    return CheckpointLocation(open_storage(str(side / LOCATION)))


def _plan_until(side: Path, number: int, until: Mapping[str, str]) -> CheckpointLocation:
    """Plan a micro-batch that ends where the user says; other sources get no events."""
    location = _location(side)
    before = OffsetLogEntry.parse(location.read_content(f"offsets/{number - 1}"))
    ends = dict(before.sources)
    for source, end in until.items():
        if source not in ends:
            raise InvalidArgumentError(
                f"--until {source}={end}: the query has no such source, but {', '.join(ends)}"
            )
        ends[source] = _later_end(f"--until {source}={end}", ends[source], end)
    # MicroBatchExecution.constructNextBatch
    watermark = location.commit(number - 1).next_watermark_ms
    times = {"batchWatermarkMs": watermark, "batchTimestampMs": time.time_ns() // 1_000_000}
    settings = json.dumps(json.loads(before.settings) | times, separators=(",", ":"))
    named = [(source, ends[source]) for source, _ in before.sources]
    _write_plan(side, number, replace(before, settings=settings).with_sources(named))
    return location


def _write_plan(side: Path, number: int, entry: OffsetLogEntry) -> None:
    """Write the plan of a micro-batch, unless a killed rehearsal has written it.

    An exported location can have another one, of a micro-batch that the job has not finished.
    """
    path = side / LOCATION / "offsets" / str(number)
    if not path.exists() or OffsetLogEntry.parse(path.read_bytes()).sources != entry.sources:
        with output_file(path, replace=True) as file:
            file.write(entry.encode())


def _later_end(option: str, stored: str, given: str) -> str:
    """Return the end of a source as JSON; partitions that it does not name stay where they are."""
    try:
        end, kind = json.loads(given), read_end(stored)[0]
        if kind == FILES:
            raise InvalidArgumentError(
                f"{option}: only the query itself numbers the files of a source; use --batches"
            )
        if kind and read_end(given)[0] != kind:
            raise ValueError(f"it is not of the form {stored}")
        begin: Any = None if stored == NO_END else json.loads(stored)
        is_before = kind == NUMBERS and end < begin
        if kind == KAFKA:
            end = {topic: {**begin.get(topic, {}), **end.get(topic, {})} for topic in begin | end}
            starts = [
                (end[t][p], start) for t, parts in begin.items() for p, start in parts.items()
            ]
            is_before = any(stop < start for stop, start in starts)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{option} is not an offset in Spark's JSON: {error}") from error
    if is_before:
        raise InvalidArgumentError(f"{option} is before {stored}, with which the state ends")
    return json.dumps(end, separators=(",", ":"))


def _run(writer: DataStreamWriter, limit: Limit, side: Path) -> None:
    try:
        writer.start().awaitTermination()
    except SPARK_ERRORS as error:
        if limit.is_exceeded:
            return
        raise InvalidArgumentError(
            f"the {side.name} version failed: {describe_cause(error)}. What it has done is kept in "
            f"{side}: run the same command again to continue"
        ) from error


def _refuse_changes_outside(version: Version) -> None:
    """Refuse sources that a rehearsal would share with the job, or change for it."""
    for folder, relation in streaming_sources(version.events):
        for name, value in relation_options(relation).items():
            reason = _CHANGES_OUTSIDE.get(name.lower())
            if reason is not None and value.lower() != "off":
                raise InvalidArgumentError(
                    f"source {folder} has the option {name}={value}, by which {reason}: build the "
                    "query for a rehearsal without it"
                )
