"""The import record: broadcast state of the operator ``flink``, which describes the savepoint.

A checkpoint that was imported from a savepoint has it. Its states are:

- ``savepoint`` identifies the savepoint.
- ``operators`` has the metadata of each operator.
- ``states`` has the header data of each state, with exact copies of the serializer snapshots, and
  the mapping of the state's rows to columns.
- ``keys`` has the facts that the import discovered about the keys and values of states.
- ``contents`` has the digest of the bytes of each imported operator.

Imports of older releases lack the last two, because the columns of a stored state never change.

The savepoint can be rebuilt from this record and the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.interop.flink.columns.declared_types import declared_state
from statestore.interop.flink.columns.state_columns import (
    EntryForm,
    Names,
    StateColumns,
    state_columns,
)
from statestore.interop.flink.importing.probes import set_kryo_parts, set_value_class
from statestore.interop.flink.metadata.java_binary import i32
from statestore.interop.flink.read.canonical import HeaderKind, StateInfo
from statestore.interop.flink.read.keyed_states import FlinkState, keyed_state
from statestore.interop.flink.read.operator_parts import read_whole_snapshot
from statestore.interop.flink.types.key_recipes import is_computable
from statestore.interop.flink.types.kryo import is_kryo_bytes
from statestore.interop.flink.types.serializer_snapshots import SerializerSnapshot
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter

RECORD = "flink"
"""The operator that holds the record; no other operator gets this name."""

_SAVEPOINT, _OPERATORS, _STATES = "savepoint", "operators", "states"
_KEYS, _CONTENTS = "keys", "contents"
_PROXY_VERSION = 2
_SERIALIZERS = {
    "key_serializer": "KEY_SERIALIZER",
    "namespace_serializer": "NAMESPACE_SERIALIZER",
    "value_serializer": "VALUE_SERIALIZER",
}
_SAVEPOINT_FIELDS = pa.schema(
    [
        pa.field("place", pa.string()),
        pa.field("checkpoint", pa.int64()),
        pa.field("metadata_version", pa.int32()),
        pa.field("digest", pa.string()),
    ]
)
_OPERATOR_FIELDS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("operator", "id", "uid", "name")),
        *(pa.field(name, pa.int32()) for name in ("parallelism", "max_parallelism")),
        *(pa.field(name, pa.bool_()) for name in ("is_finished", "is_compressed", "is_imported")),
        pa.field("finished_subtasks", pa.list_(pa.int32())),
        pa.field("coordinator_name", pa.string()),
        pa.field("coordinator", pa.binary()),
        pa.field("problem", pa.string()),
    ]
)
_STATE_FIELDS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("operator", "state", "name", "sort", "kind")),
        *(pa.field(name, pa.string()) for name in ("form", "why", "names", "options", "python")),
        *(pa.field(name, pa.binary()) for name in _SERIALIZERS),
        pa.field("rows", pa.int64()),
        pa.field("digest", pa.string()),
    ]
)
_CONTENT_FIELDS = pa.schema([pa.field(name, pa.string()) for name in ("operator", "content")])
_KEY_FIELDS = pa.schema(
    [
        pa.field(name, pa.string())
        for name in ("operator", "state", "key_class", "key_hash", "value_class")
    ]
)


@dataclass(frozen=True, kw_only=True)
class ImportedOperator:
    """An operator of the savepoint; ``operator`` is its name in the store.

    ``uid`` and ``name`` are None if the savepoint does not have them. ``problem`` is the reason why
    its state was not read. ``is_imported`` is false if it was not selected, or could not be read.
    ``content`` is the SHA-256 of the bytes that were read; imports of older releases lack it.
    """

    operator: str
    id: str
    uid: str | None
    name: str | None
    parallelism: int
    max_parallelism: int
    is_finished: bool
    is_compressed: bool
    is_imported: bool
    finished_subtasks: tuple[int, ...]
    coordinator_name: str | None
    coordinator: bytes | None
    problem: str | None
    content: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImportedState:
    """A state of the savepoint, and how it was imported.

    ``state`` is its name in the store and ``name`` its name in Flink. ``sort`` is ``keyed``, or the
    redistribution mode of operator state. ``kind`` is the store's kind of a keyed state, otherwise
    empty. ``why`` is the reason if its values stay bytes. ``names`` are the column names by part.
    ``options`` and the serializers are copied from Flink's header; each snapshot begins with its
    class name. ``python`` is the user's declaration for a state of a PyFlink operator, or empty if
    there is none; for other operators it is None. ``key_class`` is the class of the keys, such as
    ``Long``, if Kryo wrote them and all have one simple class. ``key_hash`` is the recipe for the
    hashes of keys whose type has no known hash, which this process may be unable to compute.
    ``value_class`` is the class of the values in the same case. Otherwise it may be the version of
    Kryo that wrote parts of keys and values; such parts stay bytes.
    """

    operator: str
    state: str
    name: str
    sort: str
    kind: str
    form: EntryForm
    why: str | None
    names: Mapping[str, tuple[str, ...]]
    options: Mapping[str, str]
    key_serializer: bytes | None
    namespace_serializer: bytes | None
    value_serializer: bytes
    rows: int
    digest: int
    python: str | None = None
    key_class: str | None = None
    key_hash: str | None = None
    value_class: str | None = None

    @property
    def info(self) -> StateInfo:
        """The description of the state in the header of a canonical savepoint."""
        serializers = {
            flink: self._read_snapshot(name)
            for name, flink in _SERIALIZERS.items()
            if getattr(self, name) is not None and (name != "key_serializer" or not self.is_keyed)
        }
        if not self.is_keyed:
            is_broadcast = self.sort == "broadcast"
            kind: HeaderKind = "broadcast" if is_broadcast else "operator"
        else:
            kind = "timers" if self.namespace_serializer is None else "keyed"
        return StateInfo(self.name, kind, self.options, serializers)

    @property
    def is_keyed(self) -> bool:
        """Whether it is keyed state."""
        return self.sort == "keyed"

    @property
    def key(self) -> SerializerSnapshot:
        """The serializer of the keys of keyed state."""
        return self._read_snapshot("key_serializer")

    def columns(self, max_parallelism: int) -> StateColumns:
        """Return the mapping of a keyed state's rows to columns."""
        name = f"state {self.name!r} of {self.operator}"
        state = keyed_state(self.info, self.key.flink_type, name)
        recipe = self.key_hash if self.key_hash and is_computable(self.key_hash) else None
        return self.map_columns(replace(state, recipe=recipe), max_parallelism)

    def map_columns(
        self, state: FlinkState, max_parallelism: int, names: Names | None = None
    ) -> StateColumns:
        """Return the mapping for the state of another savepoint, by default with the same names."""
        if self.python:
            state = declared_state(state, self.python)
        if self.key_class is not None and is_kryo_bytes(state.key):
            state = state.with_key(state.key.with_class(self.key_class))
        if self.value_class is not None:
            state = set_value_class(state, self.value_class)
        is_python = self.python is not None
        names = self.names if names is None else names
        return state_columns(state, self.form, max_parallelism, names, is_python=is_python)

    def _read_snapshot(self, name: str) -> SerializerSnapshot:
        raw: bytes = getattr(self, name)
        snapshot = read_whole_snapshot(i32(_PROXY_VERSION) + raw, f"the {name} of {self.name!r}")
        known = set_kryo_parts(snapshot.flink_type, self.value_class)
        return replace(snapshot, flink_type=known)


@dataclass(frozen=True)
class SavepointRecord:
    """The savepoint from which a checkpoint was imported.

    ``checkpoint`` is its id in Flink. ``digest`` is the SHA-256 of its ``_metadata``.
    """

    place: str
    checkpoint: int
    metadata_version: int
    digest: str
    operators: tuple[ImportedOperator, ...]
    states: tuple[ImportedState, ...]

    @property
    def stored_names(self) -> dict[str, str]:
        """The names of the operators with imported states, by operator id."""
        names = {state.operator for state in self.states}
        return {one.id: one.operator for one in self.operators if one.operator in names}

    def write(self, checkpoint: CheckpointWriter) -> None:
        """Write the record into a checkpoint."""
        savepoint = {name: getattr(self, name) for name in _SAVEPOINT_FIELDS.names}
        _write_broadcast(checkpoint, _SAVEPOINT, [savepoint], _SAVEPOINT_FIELDS)
        operators = [vars(operator) for operator in self.operators]
        _write_broadcast(checkpoint, _OPERATORS, operators, _OPERATOR_FIELDS)
        contents = [operator for operator in operators if operator["content"] is not None]
        _write_broadcast(checkpoint, _CONTENTS, contents, _CONTENT_FIELDS)
        states = [
            vars(state)
            | {
                "form": state.form.value,
                "names": json.dumps(state.names),
                "options": json.dumps(state.options),
                "digest": f"{state.digest:x}",
            }
            for state in self.states
        ]
        _write_broadcast(checkpoint, _STATES, states, _STATE_FIELDS)
        keys = [
            vars(state)
            for state in self.states
            if state.key_class or state.key_hash or state.value_class
        ]
        _write_broadcast(checkpoint, _KEYS, keys, _KEY_FIELDS)

    @classmethod
    def of(cls, restored: RestoredCheckpoint) -> SavepointRecord:
        """Read the record of a checkpoint.

        Raises:
            InvalidArgumentError: if the checkpoint was not imported from a savepoint.
        """
        try:
            (savepoint,) = _read_elements(restored, _SAVEPOINT)
        except StateNotFoundError:
            raise InvalidArgumentError(
                f"checkpoint {restored.checkpoint_id} was not imported from a Flink "
                f"savepoint: it has no state {_SAVEPOINT!r} of operator {RECORD!r}. Create "
                "such a checkpoint with 'statestore flink import'"
            ) from None
        contents = {one["operator"]: one for one in _read_newer(restored, _CONTENTS)}
        operators = tuple(
            ImportedOperator(
                **element
                | {"finished_subtasks": tuple(element["finished_subtasks"])}
                | contents.get(element["operator"], {})
            )
            for element in map(
                _make_selector(ImportedOperator), _read_elements(restored, _OPERATORS)
            )
        )
        keys = {
            (element["operator"], element["state"]): element
            for element in _read_newer(restored, _KEYS)
        }
        states = tuple(
            _parse_state(element | keys.get((element["operator"], element["state"]), {}))
            for element in _read_elements(restored, _STATES)
        )
        which = {name: savepoint[name] for name in _SAVEPOINT_FIELDS.names}
        return cls(**which, operators=operators, states=states)


def _parse_state(element: dict[str, Any]) -> ImportedState:
    names = {part: tuple(columns) for part, columns in json.loads(element["names"]).items()}
    plain = _make_selector(ImportedState)(element) | {
        "form": EntryForm(element["form"]),
        "names": names,
        "options": json.loads(element["options"]),
        "digest": int(element["digest"], 16),
    }
    return ImportedState(**plain)


def _make_selector(record_type: Any) -> Any:
    names = [field.name for field in fields(record_type)]
    return lambda element: {name: element[name] for name in names if name in element}


def _write_broadcast(
    checkpoint: CheckpointWriter,
    name: str,
    elements: Iterable[Mapping[str, Any]],
    schema: pa.Schema,
) -> None:
    rows = [{column: element[column] for column in schema.names} for element in elements]
    checkpoint.write_broadcast(RECORD, name, pa.Table.from_pylist(rows, schema))


def _read_newer(restored: RestoredCheckpoint, name: str) -> list[dict[str, Any]]:
    try:
        return _read_elements(restored, name)
    except StateNotFoundError:  # an import of an older release
        return []


def _read_elements(restored: RestoredCheckpoint, name: str) -> list[dict[str, Any]]:
    return restored.operator_state(RECORD, name).subtask(0)
