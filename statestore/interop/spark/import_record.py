"""The import record: broadcast state of the operator ``query``, which describes the query.

A checkpoint that was imported from a Spark query has it. ``progress``, ``positions`` and Kafka's
``offsets`` have the form that a ``StatefulQuery`` uses, so that one can continue with the state.
``stores`` has the mapping of rows to columns for Spark's stores and their variables. ``logs`` has
exact copies of the files that Spark needs again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pyspark.sql.types import StructType

from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.digest import RowSet
from statestore.interop.spark.columns import FamilyColumns, StoreColumns
from statestore.interop.spark.location import OffsetLogEntry
from statestore.interop.spark.parts import Columns, PartForm, StatePart
from statestore.interop.spark.query_settings import settings_of
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter
from statestore.streaming.progress import Progress, stored_offsets

QUERY = "query"
"""The operator that holds the record; no other operator gets this name."""

_STORES, _LOGS, _ORIGIN = "stores", "logs", "origin"


@dataclass(frozen=True, kw_only=True)
class ImportedStore(StatePart):
    """A part of an operator, with the columns and contents of the state that was imported."""

    columns: Columns
    contents: RowSet

    def to_element(self) -> dict[str, Any]:
        """Return the part as an element of broadcast state."""
        value, entry = "", None
        if isinstance(self.columns, StoreColumns):
            value, entry = self.columns.value.json(), self.columns.entry
        return {
            "operator": self.operator,
            "operator_name": self.operator_name,
            "store": self.store,
            "partitions": self.partitions,
            "state": self.state,
            "form": self.form.value,
            "variable": self.variable,
            "has_ttl": self.has_ttl,
            "key_schema": self.columns.key.json(),
            "value_schema": value,
            "entry": entry or "",
            "rows": self.contents.rows,
            "digest": f"{self.contents.digest:x}",
        }

    @classmethod
    def from_element(cls, element: dict[str, Any]) -> ImportedStore:
        """Return the part that an element describes."""
        form, columns = PartForm(element["form"]), _parse_columns(element)
        contents = RowSet(element["rows"], int(element["digest"], 16))
        plain = {
            field.name: element[field.name] for field in fields(StatePart) if field.name != "form"
        }
        return cls(**plain, form=form, columns=columns, contents=contents)


def _parse_columns(element: dict[str, Any]) -> Columns:
    key = _parse_struct(element["key_schema"])
    if element["form"] == PartForm.FAMILIES:
        return FamilyColumns(key)
    return StoreColumns(key, _parse_struct(element["value_schema"]), element["entry"] or None)


def _parse_struct(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))


@dataclass(frozen=True)
class QueryRecord:
    """The query, the micro-batch of the state, and the imported stores and logs.

    ``ends`` are the ends of each source's data, as JSON. ``logs`` are the names and contents of
    files, from the time of the imported micro-batch. ``names`` are the names of the sources in the
    order of ``ends``, empty if they have none. ``offsets`` are the elements of the state with Kafka
    offsets, None if there is none.
    """

    query_id: str
    batch: int
    location: str
    ends: tuple[str, ...]
    stores: tuple[ImportedStore, ...]
    logs: tuple[tuple[str, bytes], ...]
    names: tuple[str, ...] = ()
    offsets: Sequence[Mapping[str, Any]] | None = None

    def write(self, checkpoint: CheckpointWriter, parallelism: int) -> None:
        """Write the record into a checkpoint with this parallelism."""
        progress = Progress(((self.query_id, self.batch),), self.ends, names=self.names)
        progress.write(checkpoint, QUERY, parallelism)
        checkpoint.write_broadcast(QUERY, _ORIGIN, [{"location": self.location}])
        checkpoint.write_broadcast(QUERY, _STORES, [store.to_element() for store in self.stores])
        logs = [{"name": name, "content": content} for name, content in self.logs]
        checkpoint.write_broadcast(QUERY, _LOGS, logs)

    @property
    def imported_batch(self) -> int:
        """The micro-batch that was imported."""
        names = (name.partition("/") for name, _ in self.logs)
        return max(int(number) for folder, _, number in names if folder == "commits")

    @property
    def commit_version(self) -> str:
        """The version of the query's checkpoint format, ``1`` or ``2``."""
        version, *_ = dict(self.logs)[f"commits/{self.batch}"].split(b"\n")
        return version.decode().removeprefix("v")

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of the imported micro-batch, as in :class:`BatchPlan`."""
        return settings_of(self.offsets_entry(self.imported_batch).conf)

    def offsets_entry(self, batch: int) -> OffsetLogEntry:
        """Return the entry of a micro-batch in the offset log."""
        return OffsetLogEntry.parse(dict(self.logs)[f"offsets/{batch}"])

    @property
    def positions(self) -> Mapping[str, str]:
        """The end of each source's data, as JSON, by the source's name or number."""
        numbers = map(str, range(len(self.ends)))
        return dict(zip(self.names or numbers, self.ends, strict=True))

    @property
    def has_logs(self) -> bool:
        """Whether the state is still as it was imported, and no ``StatefulQuery`` advanced it."""
        query = json.loads(dict(self.logs)["metadata"])["id"]
        return (query, self.imported_batch) == (self.query_id, self.batch)

    @classmethod
    def from_checkpoint(cls, restored: RestoredCheckpoint) -> QueryRecord:
        """Read the record of a checkpoint.

        Raises:
            InvalidArgumentError: if it was not imported from a query's checkpoint location.
        """
        try:
            stores = tuple(map(ImportedStore.from_element, _read_elements(restored, _STORES)))
        except StateNotFoundError:
            raise InvalidArgumentError(
                f"checkpoint {restored.checkpoint_id} was not imported from a Spark query: it "
                f"has no state {_STORES!r} of operator {QUERY!r}. Create such a checkpoint "
                "with 'statestore spark import'"
            ) from None
        logs = tuple(
            (element["name"], element["content"]) for element in _read_elements(restored, _LOGS)
        )
        progress = Progress.of(restored, QUERY)
        query, batch = progress.queries[-1]
        # A record of an older release has no positions; then the positions in its logs apply.
        ends = progress.ends or OffsetLogEntry.parse(dict(logs)[f"offsets/{batch}"]).lines
        location = next((origin["location"] for origin in _read_origin(restored)), "")
        offsets = stored_offsets(restored, QUERY)
        return cls(query, batch, location, ends, stores, logs, progress.names, offsets)


def _read_origin(restored: RestoredCheckpoint) -> Iterable[dict[str, Any]]:
    try:
        return _read_elements(restored, _ORIGIN)
    except StateNotFoundError:  # a record of an older release, which has no origin
        return ()


def _read_elements(restored: RestoredCheckpoint, name: str) -> Iterable[dict[str, Any]]:
    (elements,) = restored.operator_state(QUERY, name).per_old_subtask()
    return elements
