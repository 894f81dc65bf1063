"""What a checkpoint says of the query that it was imported from: broadcast state of ``query``.

How far the query is stands there as a ``StatefulQuery`` keeps it, so that one can go on with the
state: ``progress``, ``positions``, and Kafka's ``offsets``. ``stores`` says how the rows of each of
Spark's stores, and of their variables, became those of a state, and ``logs`` has the files that
Spark needs again, word for word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pyspark.sql.types import StructType

from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.digest import RowSet
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.families import FamilyColumns
from statestore.interop.spark.parts import Columns, Form, Part
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter
from statestore.streaming.progress import Progress

__all__ = ["QUERY", "ImportedStore", "QueryRecord"]

QUERY = "query"
"""The operator that has what was imported beside the state; no other one gets this name."""

_STORES, _LOGS, _ORIGIN = "stores", "logs", "origin"


@dataclass(frozen=True, kw_only=True)
class ImportedStore(Part):
    """A part of an operator, and the state that it became: the rows that were imported."""

    columns: Columns
    contents: RowSet

    def to_element(self) -> dict[str, Any]:
        """Return it as an element of broadcast state."""
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
    def of_element(cls, element: dict[str, Any]) -> ImportedStore:
        """Return what an element says."""
        form, columns = Form(element["form"]), _columns(element)
        contents = RowSet(element["rows"], int(element["digest"], 16))
        plain = {one.name: element[one.name] for one in fields(Part) if one.name != "form"}
        return cls(**plain, form=form, columns=columns, contents=contents)


def _columns(element: dict[str, Any]) -> Columns:
    key = _struct(element["key_schema"])
    if element["form"] == Form.FAMILIES:
        return FamilyColumns(key)
    return StoreColumns(key, _struct(element["value_schema"]), element["entry"] or None)


def _struct(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))


@dataclass(frozen=True)
class QueryRecord:
    """The query, the micro-batch that its state is of, and what came along.

    ``ends`` say where the data of each source end, as JSON; ``logs`` are names and contents of
    files, as of the micro-batch that was imported.
    """

    query_id: str
    batch: int
    location: str
    ends: tuple[str, ...]
    stores: tuple[ImportedStore, ...]
    logs: tuple[tuple[str, bytes], ...]

    def write(self, checkpoint: CheckpointWriter, parallelism: int) -> None:
        """Write it into a checkpoint of a parallelism."""
        Progress(((self.query_id, self.batch),), self.ends).write(checkpoint, QUERY, parallelism)
        checkpoint.broadcast(QUERY, _ORIGIN, [{"location": self.location}])
        checkpoint.broadcast(QUERY, _STORES, [one.to_element() for one in self.stores])
        logs = [{"name": name, "content": content} for name, content in self.logs]
        checkpoint.broadcast(QUERY, _LOGS, logs)

    @property
    def imported_batch(self) -> int:
        """The micro-batch that was imported."""
        names = (name.partition("/") for name, _ in self.logs)
        return max(int(number) for folder, _, number in names if folder == "commits")

    @property
    def commit_version(self) -> str:
        """The format of its checkpoints, ``1`` or ``2``."""
        version, *_ = dict(self.logs)[f"commits/{self.batch}"].split(b"\n")
        return version.decode().removeprefix("v")

    @property
    def settings(self) -> Mapping[str, str]:
        """Those that the micro-batch which was imported was planned with."""
        _, planned, *_ = dict(self.logs)[f"offsets/{self.imported_batch}"].split(b"\n")
        settings: Mapping[str, str] = json.loads(planned)["conf"]
        return settings

    @property
    def has_logs(self) -> bool:
        """Whether the state is as it was imported: no ``StatefulQuery`` went on with it since."""
        query = json.loads(dict(self.logs)["metadata"])["id"]
        return (query, self.imported_batch) == (self.query_id, self.batch)

    @classmethod
    def of(cls, restored: RestoredCheckpoint) -> QueryRecord:
        """Return what a checkpoint says.

        Raises:
            InvalidArgumentError: when it was not imported from a query's checkpoint location.
        """
        try:
            stores = tuple(map(ImportedStore.of_element, _elements(restored, _STORES)))
        except StateNotFoundError:
            raise InvalidArgumentError(
                f"checkpoint {restored.checkpoint_id} was not imported from a query of Spark: it "
                f"has no state {_STORES!r} of operator {QUERY!r}. Make one with 'statestore "
                "spark import'"
            ) from None
        logs = tuple((one["name"], one["content"]) for one in _elements(restored, _LOGS))
        progress = Progress.of(restored, QUERY)
        query, batch = progress.queries[-1]
        # What an older release imported has no positions: they are where its logs say.
        ends = progress.ends or tuple(dict(logs)[f"offsets/{batch}"].decode().splitlines()[2:])
        location = next((one["location"] for one in _origin(restored)), "")
        return cls(query, batch, location, ends, stores, logs)


def _origin(restored: RestoredCheckpoint) -> Iterable[dict[str, Any]]:
    try:
        return _elements(restored, _ORIGIN)
    except StateNotFoundError:  # of an older release, which has it elsewhere
        return ()


def _elements(restored: RestoredCheckpoint, name: str) -> Iterable[dict[str, Any]]:
    (elements,) = restored.operator(QUERY, name).per_old_subtask()
    return elements
