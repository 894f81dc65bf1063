"""Arguments of imports and exports that belong together, as frozen values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from statestore.arguments import checked_fields
from statestore.durations import Duration


@checked_fields
@dataclass(frozen=True, kw_only=True)
class SavepointAccess:
    """How the files of a savepoint are found and read.

    Attributes:
        moved: the current locations of folders that were moved since the savepoint was written.
            Checkpoints refer to files by absolute paths.
        allow: other folders and files that the savepoint may refer to, as paths or URLs.
        storage_options: options for the file system, as in ``open_storage``.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    moved: Mapping[str, str] | None = None
    allow: Collection[str] = ()
    storage_options: Mapping[str, Any] | None = None


@checked_fields
@dataclass(frozen=True, kw_only=True)
class SavepointHints:
    """Information that an import needs and that a savepoint does not contain.

    Attributes:
        uids: uids by operator id, for operators whose uid is not in the savepoint.
        columns: column names by operator. An operator has ``key`` and ``namespace``. Under
            ``states`` each state can have these and ``map_key`` and ``value``. Each is a name or a
            list of names. A PyFlink state also has ``type``, such as ``ValueState<LONG>``. Names
            and types of states that are already in the store cannot be changed.
        key_hash: recipes for the hashes of keys of the job's own class, by operator, such as
            ``record(name, id)``, or ``python:NAME`` of a function of :func:`register_key_hash`. A
            recipe must give the stored key group of every key.
        ttl: TTLs such as ``7d``, by state or ``operator/state``. A savepoint has the time of a
            row's last access, but not the TTL.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    uids: Mapping[str, str] | None = None
    columns: Mapping[str, Any] | None = None
    ttl: Mapping[str, Duration] | None = None
    key_hash: Mapping[str, str] | None = None


@checked_fields
@dataclass(frozen=True, kw_only=True)
class ExportSelection:
    """Which state an export writes.

    Attributes:
        operators: the uids of the operators to write; by default all.
        leave_out: state to leave out of the savepoint: an operator, ``operator/state``, or a pair
            of these. State of the source that the checkpoint does not have must be named here.
            Operators are identified by uid, name or operator id.
        carry: operators that the import left out, by uid, name or operator id. Their state is
            copied unchanged from the imported savepoint, which must still exist.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    operators: Collection[str] | None = None
    leave_out: Collection[str | tuple[str, str]] = ()
    carry: Collection[str] = ()


@checked_fields
@dataclass(frozen=True, kw_only=True)
class FlinkTarget:
    """The job that restores an exported savepoint.

    Attributes:
        types: the types of the job in Java's notation. By operator, the type of its keys. By
            ``operator/state``, the type of a value, or the ``List`` or ``Map`` of a state with
            elements or entries: ``{"by_user": "com.acme.User", "by_user/cart": "List<Item>"}``. By
            default they follow from the columns, and several columns are a ``Row``. Offsets become
            the state of a Kafka source with ``KafkaSource``. Imported state keeps its types.
        version: the job's version of Flink, such as ``2.3``. State that Flink 1 wrote is then
            converted for Flink 2. By default it is written for the Flink that wrote it.
        written_by: the version of Flink that wrote the imported state. By default it follows from
            the savepoint's metadata, except for savepoints before Flink 1.16.
        classes: descriptions of classes, by class name. For a Scala class in a job of Flink 2, the
            Java class that replaces it: ``{"tuple": True}``, ``{"pojo": name, "fields": [names in
            the order of the case class]}``, or ``{"enum": name}``. A POJO of keys also has
            ``hash``, a recipe like those of ``key_hash`` in an import. For a Java POJO, the types
            of its collections: ``{"collections": {field: "List<String>"}}``. For a class in
            ``types``: ``{"fields": {field: type}}``, with ``hash`` for keys, or ``{"constants":
            [names]}`` of an enum. A POJO that is not described has a field for each column.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    types: Mapping[str, str] | None = None
    version: str | None = None
    written_by: str | None = None
    classes: Mapping[str, Any] | None = None


ACCESS = SavepointAccess()
HINTS = SavepointHints()
EVERYTHING = ExportSelection()
ANY_JOB = FlinkTarget()
