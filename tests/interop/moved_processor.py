"""The processor of Spark that continues with the state of a keyed process function of Flink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

SCHEMA = "key long, last long, texts array<string>, sums map<int, double>, timers array<long>"


class MovedProcessor(StatefulProcessor):
    """It emits all state of each key that has an event, and takes the event's value as ``last``."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states, with the names that they have in Flink."""
        self.handle = handle
        self.last = handle.getValueState("last", "value long")
        self.texts = handle.getListState("texts", "value string")
        self.sums = handle.getMapState("sums", "number int", "value double")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Emit the state, and update the value."""
        before = self.last.get()
        yield pd.DataFrame(
            {
                "key": [key[0]],
                "last": pd.Series([before and before[0]], dtype="Int64"),
                "texts": [[text for (text,) in self.texts.get()]],
                "sums": [{number: value for (number,), (value,) in self.sums.iterator()}],
                "timers": [sorted(int(timer) for timer in self.handle.listTimers())],
            }
        )
        for frame in rows:
            self.last.update((int(frame["value"].iloc[-1]),))

    def close(self) -> None:
        """Nothing needs to be closed."""
