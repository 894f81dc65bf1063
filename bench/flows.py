"""Count the modules that a flow passes, and its returns: ``python -m bench.flows``.

A module counts if one of its functions runs between the first and the last call of a flow, in this
thread or in threads that the flow starts. Code that runs only on import does not count, and neither
does code in Spark's Python workers.

A return is a call into a module that the flow had left for another one and that has not finished:
callbacks, closures, and generators that a module lower down consumes. A generator counts once,
however often it is resumed. A place is a function with at least one return from one module. The
number of places does not depend on the number of rows, files or key groups.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from statestore.spark.session import spark_session
from statestore.store import StateStore
from statestore.streaming import MicroBatch, ProcessorOptions, StatefulQuery

__all__ = ["FLOWS", "MICRO_BATCHES", "Passage", "main", "passage_of"]

ROWS = pa.table({"k": [f"k{i}" for i in range(500)], "v": list(range(500))})
OFFSETS = [[{"topic": "t", "partition": p, "offset": 10 * p}] for p in range(4)]


@dataclass
class Passage:
    """The modules that a flow has passed, and the number of its returns by place.

    A place has the calling module, the called module, and the called function.
    """

    modules: set[str] = field(default_factory=set)
    places: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _counted: set[FrameType] = field(default_factory=set)

    @property
    def returns(self) -> int:
        """The number of all returns."""
        return self.places.total()

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """Record a call; this is a profile function of ``sys.setprofile``."""
        called = _module_of(frame)
        if event != "call" or called is None:
            return
        self.modules.add(called)
        callers = _callers(frame)
        caller = next(callers, called)
        if caller != called and called in callers and frame not in self._counted:
            self._counted.add(frame)  # a generator keeps its frame
            self.places[caller, called, frame.f_code.co_qualname] += 1


def passage_of(flow: Callable[[], object]) -> Passage:
    """Return what a flow passes, in this thread and in the threads that it starts."""
    passage = Passage()
    threading.setprofile(passage.note)
    sys.setprofile(passage.note)
    try:
        flow()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return passage


def _callers(frame: FrameType) -> Iterator[str]:
    """Yield the modules of the package that are running below a frame, innermost first."""
    below = frame.f_back
    while below is not None:
        module = _module_of(below)
        if module is not None:
            yield module
        below = below.f_back


def _module_of(frame: FrameType) -> str | None:
    name: str = frame.f_globals.get("__name__", "")
    is_own = name.partition(".")[0] == "statestore" and frame.f_code.co_name != "<module>"
    return name if is_own else None


def snapshot(store: StateStore) -> None:
    """Store a table as keyed state, partitioned by key group."""
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k", max_parallelism=16, layout="ranged")


def restore(store: StateStore) -> None:
    """Read the rows of one subtask at another parallelism."""
    store.restore(parallelism=3).keyed("u", "n").to_batches(1)


def change(store: StateStore) -> None:
    """Change some rows; the layers are folded into the base in the background."""
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.write_changes("u", "n", ROWS.slice(0, 400), key="k")
    _wait_for_compaction(store)


def element(store: StateStore) -> None:
    """Write an operator's elements and redistribute them to other subtasks."""
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.carry_rest()
        checkpoint.write_split("source", "offsets", OFFSETS)
    store.restore(parallelism=3).operator_state("source", "offsets").subtask(1)


FLOWS = {"snapshot": snapshot, "restore": restore, "change": change, "operator element": element}


class Total(StatefulProcessor):
    """A processor with a value."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the value."""
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Count the key's events."""
        (n,) = self.total.get() or (0,)
        self.total.update((n + len(list(rows)),))
        return iter(())

    def close(self) -> None:
        """Do nothing."""


def latest(
    events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch
) -> Mapping[str, DataFrame]:
    """Return the events as the new rows of the state."""
    return {"n": events}


def _query_of_function(store: StateStore) -> StatefulQuery:
    """Return a query whose update is a function."""
    return StatefulQuery(
        store=store,
        operator="u",
        key="k",
        states={"n": "k string, v long"},
        update=latest,
        parallelism=2,
    )


def _query_of_processor(store: StateStore) -> StatefulQuery:
    """Return a query whose update is a processor."""
    return StatefulQuery.of_processor(
        store=store,
        operator="u",
        processor=Total(),
        processor_options=ProcessorOptions(
            output_schema="k string", output_mode="Update", time_mode="None"
        ),
        key="k",
        parallelism=2,
    )


MICRO_BATCHES = {
    "micro-batch of a function": _query_of_function,
    "micro-batch of a processor": _query_of_processor,
}


def _process(query: StatefulQuery, number: int, events: DataFrame) -> None:
    query.process(events, MicroBatch("q", number))
    _wait_for_compaction(query.store)


def _wait_for_compaction(store: StateStore) -> None:
    background = store.parts.background
    assert background is not None
    background.wait()


def main() -> None:
    """Print the modules and the returns of each flow."""
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore.open(str(Path(folder, "store")), table_format="parquet")
        snapshot(store)  # one-time initialization is not part of any flow
        restore(store)
        for name, flow in FLOWS.items():
            _show(name, passage_of(partial(flow, store)))
        spark = spark_session(
            app_name="statestore-bench",
            master="local[2]",
            table_format="parquet",
            extra_conf={"spark.sql.shuffle.partitions": "2"},
        )
        events = spark.createDataFrame(ROWS).cache()
        for number, (name, query_of) in enumerate(MICRO_BATCHES.items()):
            url = str(Path(folder, f"query-{number}"))
            store = StateStore.open(url, spark=spark, table_format="parquet")
            query = query_of(store)
            _process(query, 0, events)
            _show(name, passage_of(partial(_process, query, 1, events)))
        spark.stop()


def _show(flow: str, passage: Passage) -> None:
    places = passage.places.most_common()
    print(
        f"{flow}: {len(passage.modules)} modules, {passage.returns} returns at {len(places)} places"
    )
    for (caller, called, function), count in places:
        print(f"  {count:3} x {caller} -> {called}: {function}")
    print(*(f"  {module}" for module in sorted(passage.modules)), sep="\n")


if __name__ == "__main__":
    main()
