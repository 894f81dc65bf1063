"""The contract of a store's states: as a checkpoint has them, or as a job declares them.

The progress that a streaming query records is left out, because it does not belong to the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from statestore.contract.model import JobContract, OperatorContract, StateContract
from statestore.engines.rows import ArrowRows
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry
from statestore.format.schema import DataType, Schema
from statestore.format.state import TimeToLive
from statestore.snapshot.state_spec import StateOptions, StateSpec

_PROGRESS = "progress"
_RECORDS = (
    *(_PROGRESS, "positions", "files", "offsets", "source-names", "timers-indexed"),
    *("stores", "logs", "origin"),  # of an import from Spark, with which a query may continue
)


def contract_of_checkpoint(manifest: Manifest) -> JobContract:
    """Return the contract of all states of a checkpoint."""
    recorded = {entry.state.uid for entry in manifest.operator if entry.state.name == _PROGRESS}
    states = [(entry.state.uid, _keyed(entry)) for entry in manifest.keyed]
    states += [
        (entry.state.uid, _elements(entry))
        for entry in manifest.operator
        if not (entry.state.uid in recorded and entry.state.name in _RECORDS)
    ]
    return JobContract(engine="store", operators=group_by_operator(states))


def group_by_operator(
    states: Iterable[tuple[str, StateContract]],
) -> tuple[OperatorContract, ...]:
    """Return the operators of states, which come with the uids of their operators."""
    by_uid: dict[str, list[StateContract]] = {}
    for uid, state in states:
        by_uid.setdefault(uid, []).append(state)
    return tuple(
        OperatorContract(id=uid, name=uid, kind="operator", uid=uid, states=tuple(its))
        for uid, its in sorted(by_uid.items())
    )


def _keyed(entry: KeyedEntry) -> StateContract:
    state, contents = entry.state, entry.contents
    form: dict[str, Any] = {
        "columns": columns_of(state.schema),
        "key": list(state.key),
        "namespace": list(state.namespace),
        "entry": list(state.entry),
        "key_types": list(state.key_types),
        "hash_scheme": state.hash_scheme,
        "max_parallelism": state.max_parallelism,
    }
    if state.time_domain is not None:
        form["time_domain"] = state.time_domain.value
    if state.ttl is not None:
        form["ttl"] = ttl_form(state.ttl)
    return StateContract(
        name=state.name,
        kind=state.kind.value,
        form=form,
        rows=None if contents is None else contents.rows,
        bytes=entry.size_bytes,
    )


def _elements(entry: OperatorEntry) -> StateContract:
    return StateContract(
        name=entry.state.name,
        kind=entry.state.mode.value,
        form={"columns": columns_of(entry.state.schema)},
        rows=entry.rows,
        bytes=entry.size_bytes,
    )


def columns_of(schema: Schema) -> dict[str, Any]:
    """Return the types of columns by name, without nullability, which a store does not keep."""
    return {name: _plain(data_type) for name, data_type in schema.types.items()}


def _plain(data_type: DataType) -> Any:
    if isinstance(data_type, str):
        return data_type
    parts = {name: _plain(data_type[name]) for name in _INNER if name in data_type}
    if data_type["type"] == "struct":
        parts["fields"] = [
            {"name": each["name"], "type": _plain(each["type"])} for each in data_type["fields"]
        ]
    return {"type": data_type["type"], **parts}


_INNER = ("elementType", "keyType", "valueType")


def ttl_form(ttl: TimeToLive) -> dict[str, str]:
    """Return the form of a TTL."""
    return {
        "duration": str(ttl.duration),
        "column": ttl.column,
        "update": str(ttl.update),
        "visibility": str(ttl.visibility),
    }


@dataclass(frozen=True)
class DeclaredStates:
    """Takes the place of a checkpoint writer, and records the states that a job declares."""

    states: list[tuple[str, StateContract]] = field(default_factory=list)

    def declare_keyed(
        self, operator: str, state: str, schema: Any, **options: Unpack[StateOptions]
    ) -> None:
        """Record a state, with the arguments of ``CheckpointWriter.declare_keyed``."""
        columns = ArrowRows(schema, iter(())).schema
        declared = declared_state(StateSpec.of(operator, state, options), columns)
        self.states.append((operator, declared))

    def write_split(self, operator: str, state: str, elements: Any = None) -> None:
        """Record operator state; its elements are not compared."""
        self.states.append((operator, StateContract(name=state, kind="split")))

    def write_union(self, operator: str, state: str, elements: Any = None) -> None:
        """Record operator state; its elements are not compared."""
        self.states.append((operator, StateContract(name=state, kind="union")))

    def write_broadcast(self, operator: str, state: str, elements: Any = None) -> None:
        """Record operator state; its elements are not compared."""
        self.states.append((operator, StateContract(name=state, kind="broadcast")))


def contract_of_declared(declare: Callable[[Any], object], subject: str) -> JobContract:
    """Return the contract of the states that a function declares with ``declare_keyed``.

    Args:
        declare: A function that takes a checkpoint writer.
        subject: The function's name, for messages.

    Raises:
        InvalidArgumentError: If the function fails or declares no state.
    """
    declared = DeclaredStates()
    try:
        declare(declared)
    except Exception as error:  # the user's function may fail in any way
        raise InvalidArgumentError(f"{subject} failed: {type(error).__name__}: {error}") from error
    if not declared.states:
        raise InvalidArgumentError(
            f"{subject} declares no state: call checkpoint.declare_keyed(…) in it, as the job does"
        )
    return JobContract(engine="store", operators=group_by_operator(declared.states))


def declared_state(spec: StateSpec, columns: Schema, writes: str = "rows") -> StateContract:
    """Return the contract of a declared state; its form lacks what the stored state decides.

    Args:
        spec: What the job says about the state.
        columns: The columns of its rows.
        writes: ``rows`` if the job writes all rows, or ``changes``.
    """
    form: dict[str, Any] = {"columns": columns_of(columns), "writes": writes}
    if spec.key is not None:
        form |= {"key": list(spec.key), "namespace": [], "entry": []}
    form |= {
        name: list(value)
        for name, value in (("namespace", spec.namespace), ("entry", spec.entry))
        if value is not None
    }
    if isinstance(spec.key_types, Mapping):
        types = [spec.key_types.get(name) for name in spec.key or ()]
    else:
        types = [spec.key_types] if isinstance(spec.key_types, str) else list(spec.key_types or ())
    if types and None not in types:
        form["key_types"] = types
    for name, value in (
        ("hash_scheme", spec.hash_scheme),
        ("max_parallelism", None if spec.regroup else spec.max_parallelism),
        ("time_domain", spec.time_domain and spec.time_domain.value),
        ("renamed", dict(spec.renamed)),
        ("dropped", list(spec.dropped)),
    ):
        if value:
            form[name] = value
    if spec.ttl is not None:
        form["ttl"] = ttl_form(spec.ttl) if isinstance(spec.ttl, TimeToLive) else {}
    default = "value" if spec.key is not None else ""
    return StateContract(
        name=spec.state, kind=default if spec.kind is None else spec.kind.value, form=form
    )
