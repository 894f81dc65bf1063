"""Read a compiled plan of Flink SQL, the JSON that ``COMPILE PLAN`` writes, and record it.

A checkpoint whose states began with tables for a compiled plan has the plan as broadcast state of
the operator ``flink-plan``. An export needs it to write the states with the plan's types.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from statestore.errors import (
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    NotFoundError,
    SchemaMismatchError,
    StateNotFoundError,
    UnsupportedTypeError,
)
from statestore.format.manifest import Manifest
from statestore.interop.flink_plans.layouts import PlanState
from statestore.interop.flink_plans.operators import has_known_states, is_stateless, operator_states
from statestore.interop.flink_plans.plan_types import PlanField, PlanNode, parse_row_type
from statestore.jobgraph.operators import operator_id
from statestore.parsing import parse_json
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter
from statestore.storage import open_storage

UID_FORMAT = "<id>_<transformation>"
"""Flink's default of ``table.exec.uid.format``."""

_UID_OPTION = "table.exec.uid.format"
_VERSIONS = ("1.19", "1.20", "2.0", "2.1", "2.2", "2.3")
_OUTLINED = (
    *("id", "type", "outputType", "inputProperties", "requireUpsertMaterialize", "windowing"),
)
_TYPE = re.compile(r"(.+)_(\d+)")
_PREFIX = "stream-exec-"
_SOURCE = "stream-exec-table-source-scan"
_TRANSFORMATIONS = {
    "stream-exec-limit": "rank",
    "stream-exec-lookup-join": "lookup-join-materialize",
    "stream-exec-sink": "upsert-materialize",
    "stream-exec-sort-limit": "rank",
    _SOURCE: "source",
    "stream-exec-window-table-function": "window",
}
"""The names in uids of operators that keep state, if they are not those of their types."""

_EXCHANGE = "stream-exec-exchange"

PLAN_RECORD = "flink-plan"
"""The operator that holds the record."""

_PLAN = "plan"
_FIELDS = pa.schema(
    [pa.field(name, pa.string()) for name in ("place", "digest", "uid_format", "outline")]
)


@dataclass(frozen=True, kw_only=True)
class PlanOperator:
    """An operator of a plan that keeps state; ``operator`` is its uid.

    ``problem`` is the reason why the layout of its state is unknown. The operator then has no
    states.
    """

    operator: str
    operator_id: str
    type: str
    description: str
    states: tuple[PlanState, ...]
    problem: str | None


@dataclass(frozen=True)
class FlinkPlan:
    """A compiled plan of Flink SQL.

    Attributes:
        place: its path or URL.
        version: the version of Flink that compiled it, such as ``2.3``.
        digest: the SHA-256 of its content, which does not depend on white space.
        uid_format: how uids are formed, Flink's ``table.exec.uid.format``.
        operators: the operators that keep state, in the order of the plan.
        sources: the ids of the sources, whose states the plan does not describe.
        outline: the parts of the JSON that determine the operators. Options of tables are omitted,
            because they can be passwords.
        storage_options: options for the file system of ``place``.
    """

    place: str
    version: str
    digest: str
    uid_format: str
    operators: tuple[PlanOperator, ...]
    sources: tuple[str, ...]
    outline: str = field(repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def states(self) -> tuple[PlanState, ...]:
        """The states whose layout is known."""
        return tuple(state for operator in self.operators for state in operator.states)

    def find_state(self, operator: str, state: str) -> PlanState:
        """Return a state.

        Args:
            operator: the uid of its operator.
            state: the state's name.

        Returns:
            The state.

        Raises:
            StateNotFoundError: if the plan has no such operator or state.
            UnsupportedTypeError: if the layout of the operator's state is not known.
        """
        uids = [known.operator for known in self.operators]
        if operator not in uids:
            raise StateNotFoundError(
                f"{self.place} has no operator {operator!r} with state; it has "
                f"{', '.join(uids) or 'none'}"
            )
        found = self.operators[uids.index(operator)]
        if found.problem is not None:
            raise UnsupportedTypeError(
                f"operator {operator!r} of {self.place} ({found.description:.200}) cannot begin "
                f"with a table: {found.problem}"
            )
        for known in found.states:
            if known.state == state:
                return known
        raise StateNotFoundError(
            f"operator {operator!r} of {self.place} has no state {state!r}; it has "
            f"{', '.join(known.state for known in found.states)}"
        )


def read_flink_plan(
    place: str,
    *,
    uid_format: str = UID_FORMAT,
    storage_options: Mapping[str, Any] | None = None,
) -> FlinkPlan:
    """Read a compiled plan of Flink SQL.

    Args:
        place: the JSON file, as a path or URL.
        uid_format: the job's ``table.exec.uid.format``, if it is not the default.
        storage_options: options for the file system, as in ``open_storage``.

    Returns:
        The plan, with the states of its operators.

    Raises:
        NotFoundError: if the file does not exist.
        CorruptionError: if it is not a compiled plan.
        FormatVersionError: for a plan of a version of Flink whose layouts are not known.
        InvalidArgumentError: for the name of a folder, and if two operators have the same uid.
        StorageError: if the file cannot be read.
    """
    folder, slash, name = place.rpartition("/")
    if not name.strip("."):
        raise InvalidArgumentError(
            f"{place!r} is not a file: name the JSON that COMPILE PLAN wrote"
        )
    storage = open_storage(folder + slash or ".", storage_options)
    try:
        data = storage.read(name)
    except FileNotFoundError:
        raise NotFoundError(f"{place} does not exist: check the path of the plan") from None
    plan = parse_flink_plan(data, place, uid_format=uid_format)
    return replace(plan, storage_options=storage_options)


def parse_flink_plan(data: bytes, place: str, *, uid_format: str = UID_FORMAT) -> FlinkPlan:
    """Return a compiled plan from its JSON; see :func:`read_flink_plan`."""
    try:
        document = parse_json(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{place} is not a compiled plan of Flink: {error}") from error
    match document:
        case {"flinkVersion": str(version), "nodes": list(nodes), "edges": list(edges)}:
            pass
        case _:
            raise CorruptionError(
                f"{place} is not a compiled plan of Flink: it has no flinkVersion, nodes and "
                "edges. Write it with COMPILE PLAN"
            )
    if version not in _VERSIONS:
        raise FormatVersionError(
            f"{place} was compiled by Flink {version}, whose state layouts are not known. "
            f"Compile the statement with Flink {', '.join(_VERSIONS)}"
        )
    read = _read_nodes(nodes, edges, place)
    operators = tuple(_plan_operator(node, uid_format) for node in read if not is_stateless(node))
    _refuse_repeated_uids(operators, place)
    outline = {"flinkVersion": version, "nodes": list(map(_outline, read)), "edges": edges}
    digest = hashlib.sha256(_canonical(document)).hexdigest()
    sources = tuple(operator_id(_uid(node, uid_format)) for node in read if node.name == _SOURCE)
    return FlinkPlan(
        place, version, digest, uid_format, operators, sources, _canonical(outline).decode()
    )


def _canonical(document: Any) -> bytes:
    """Return JSON in a form that does not depend on white space or the order of members."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
    return text.encode()


def _outline(node: PlanNode) -> dict[str, Any]:
    """Return the parts of a node that determine its states and the states of later nodes."""
    if has_known_states(node):
        return dict(node.data)
    kept = {name: node.data[name] for name in _OUTLINED if name in node.data}
    configuration = node.data.get("configuration")
    if isinstance(configuration, dict) and _UID_OPTION in configuration:
        kept["configuration"] = {_UID_OPTION: configuration[_UID_OPTION]}
    return kept


def _read_nodes(nodes: list[Any], edges: list[Any], place: str) -> list[PlanNode]:
    by_id = {}
    for data in nodes:
        match data:
            case {"id": int(number), "type": str(name)} if type(number) is int and _TYPE.fullmatch(
                name
            ):
                if number in by_id:
                    raise CorruptionError(f"{place} has two nodes with the id {number}")
                by_id[number] = data
            case _:
                raise CorruptionError(f"{place} has a node without id and type: {data!r:.100}")
    sources: dict[int, list[int]] = {number: [] for number in by_id}
    for edge in edges:
        match edge:
            case {"source": int(source), "target": int(target)} if {source, target} <= {*by_id}:
                sources[target].append(source)
            case _:
                raise CorruptionError(f"{place} has an edge without its nodes: {edge!r:.100}")
    return [_read_node(number, by_id, sources[number], place) for number in by_id]


def _read_node(
    number: int, nodes: Mapping[int, Mapping[str, Any]], sources: list[int], place: str
) -> PlanNode:
    data = nodes[number]
    name, _, version = data["type"].rpartition("_")
    where = f"node {number} ({data['type']}) of {place}"
    inputs: tuple[tuple[PlanField, ...], ...] = ()
    is_single = False
    if name.startswith(_PREFIX):
        inputs = tuple(
            parse_row_type(nodes[source].get("outputType"), f"the input {source} of {where}")
            for source in sources
        )
        exchanges = (
            nodes[source]
            for source in sources
            if nodes[source]["type"].rpartition("_")[0] == _EXCHANGE
        )
        is_single = any(_is_singleton(each) for each in (data, *exchanges))
    return PlanNode(number, name, version, data, inputs, is_single, where)


def _is_singleton(data: Mapping[str, Any]) -> bool:
    """Return whether a node requires that one subtask gets all rows of an input."""
    properties = data.get("inputProperties")
    return isinstance(properties, list) and any(
        isinstance(each, dict)
        and isinstance(each.get("requiredDistribution"), dict)
        and each["requiredDistribution"].get("type") == "SINGLETON"
        for each in properties
    )


def _plan_operator(node: PlanNode, uid_format: str) -> PlanOperator:
    uid = _uid(node, uid_format)
    states: tuple[PlanState, ...] = ()
    problem = None
    try:
        states = operator_states(node, uid)
    except UnsupportedTypeError as error:
        problem = str(error)
    description = node.data.get("description")
    return PlanOperator(
        operator=uid,
        operator_id=operator_id(uid),
        type=f"{node.name}_{node.version}",
        description=description if isinstance(description, str) else "",
        states=states,
        problem=problem,
    )


def _uid(node: PlanNode, uid_format: str) -> str:
    """Return the uid that Flink gives an operator (``ExecNodeContext.generateUid``)."""
    configuration = node.data.get("configuration")
    own = configuration.get(_UID_OPTION) if isinstance(configuration, dict) else None
    parts = {
        "<id>": str(node.id),
        "<type>": node.name,
        "<version>": node.version,
        "<transformation>": _TRANSFORMATIONS.get(node.name, node.name.removeprefix(_PREFIX)),
    }
    pattern = own if isinstance(own, str) else uid_format
    return re.sub("|".join(parts), lambda part: parts[part[0]], pattern)


def _refuse_repeated_uids(operators: tuple[PlanOperator, ...], place: str) -> None:
    uids = [operator.operator for operator in operators]
    repeated = next((uid for uid in uids if uids.count(uid) > 1), None)
    if repeated is not None:
        raise InvalidArgumentError(
            f"two operators of {place} have the uid {repeated!r}: the uid format must have <id>"
        )


def write_plan_record(checkpoint: CheckpointWriter, plan: FlinkPlan) -> None:
    """Write the record into a checkpoint."""
    row = {name: getattr(plan, name) for name in _FIELDS.names}
    checkpoint.write_broadcast(PLAN_RECORD, _PLAN, pa.Table.from_pylist([row], _FIELDS))


def has_plan(manifest: Manifest) -> bool:
    """Return whether a checkpoint has the record of a plan."""
    return any(entry.state.uid == PLAN_RECORD for entry in manifest.operator)


def read_plan_record(restored: RestoredCheckpoint) -> FlinkPlan | None:
    """Return the plan for which states of a checkpoint were made; None without a record.

    Of the plan's JSON it has only the ``outline``.
    """
    if not has_plan(restored.manifest):
        return None
    row: dict[str, Any]
    (row,) = restored.operator_state(PLAN_RECORD, _PLAN).subtask(0)
    plan = parse_flink_plan(row["outline"].encode(), row["place"], uid_format=row["uid_format"])
    return replace(plan, digest=row["digest"])


def refuse_other_plan(stored: FlinkPlan | None, plan: FlinkPlan, store: str) -> None:
    """Raise SchemaMismatchError if the states of a store were made for another plan."""
    if stored is None or (stored.digest, stored.uid_format) == (plan.digest, plan.uid_format):
        return
    raise SchemaMismatchError(
        f"{store} has states for the plan {stored.place} of Flink {stored.version} with the digest "
        f"{stored.digest:.12}, but {plan.place} of Flink {plan.version} has the digest "
        f"{plan.digest:.12}: its operators can have other uids and layouts. Use the plan of the "
        "store, or begin a new store for the new plan"
    )
