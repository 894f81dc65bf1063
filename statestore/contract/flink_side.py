"""Contracts of Flink jobs: of a savepoint, of imported state, and of a compiled plan of SQL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from statestore.contract.flink_forms import type_form
from statestore.contract.flink_rules import (
    BACKEND,
    COORDINATOR,
    DERIVED,
    MAX_PARALLELISM,
    PLANNED,
    TIMERS,
    UNREADABLE,
)
from statestore.contract.model import JobContract, OperatorContract, StateContract
from statestore.errors import FormatVersionError, UnsupportedTypeError
from statestore.interop.flink.importing.import_record import (
    ImportedOperator,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink.importing.stored_import import NOT_ASKED_FOR
from statestore.interop.flink.metadata.handles import MODES, IncrementalHandle, OperatorHandles
from statestore.interop.flink.metadata.versions import find_flink_major
from statestore.interop.flink.options import ACCESS, SavepointAccess
from statestore.interop.flink.read.canonical import StateInfo
from statestore.interop.flink.read.keyed_part import KeyedPart
from statestore.interop.flink.read.refusals import Refused, unread_parts
from statestore.interop.flink.read.savepoint import (
    FlinkOperator,
    describe_operator_state,
    open_savepoint,
)
from statestore.interop.flink.read.show_savepoint import ShownSavepoint, show_savepoint
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import TimerType
from statestore.interop.flink_plans.plan_file import UID_FORMAT, FlinkPlan, read_flink_plan
from statestore.keys.groups import default_max_parallelism
from statestore.restore.restored import RestoredCheckpoint

__all__ = ["contract_of_import", "contract_of_plan", "contract_of_savepoint"]

_ENGINE = "flink"
_KIND_OPTION = "KEYED_STATE_TYPE"
_VALUE, _NAMESPACE, _KEY = "VALUE_SERIALIZER", "NAMESPACE_SERIALIZER", "KEY_SERIALIZER"
_VERSION_BYTES = 8
_MOST_BYTES = 1 << 26
_CHECKPOINT = re.compile(r"(.+)/chk-\d+/?(?:_metadata)?")
_FOLDERS = re.compile(r"\S+/")


def contract_of_savepoint(place: str, *, access: SavepointAccess = ACCESS) -> JobContract:
    """Return the contract of the job that wrote a savepoint or checkpoint.

    Only ``_metadata`` and the headers of its files are read, and all of a savepoint with up to 64
    MiB of keyed state, whose states get their rows and bytes. A savepoint of a new version of the
    job, taken before the first record, describes that version. A checkpoint may reference files in
    the folder of its job, which has the files of several checkpoints.

    Args:
        place: Its folder or its ``_metadata`` file, as a path or URL.
        access: How its files are found and read.

    Raises:
        InvalidArgumentError: If the ``_metadata`` file does not exist, or references files that
            ``access`` does not allow.
        DamagedFileError or MissingFileError: If a file is damaged or missing.
        FormatVersionError: If its version is not supported.
    """
    checkpoint = _CHECKPOINT.fullmatch(place)
    if checkpoint is not None:
        access = replace(access, allow=(*access.allow, checkpoint[1]))
    savepoint = open_savepoint(place, access=access, drop=[*Refused])
    for operator in savepoint.operators:
        operator.places.refuse_outside_files(operator.metadata)
        if operator.is_damaged:
            operator.refuse_problem()
    contracts = [*map(_operator, savepoint.metadata.operators, savepoint.operators)]
    if sum(operator.size_bytes for operator in savepoint.operators) <= _MOST_BYTES:
        figures = _figures(show_savepoint(place, access=access))
        contracts = [_with_figures(contract, figures) for contract in contracts]
    backends = set(filter(None, map(_backend, savepoint.operators)))
    return _job(
        savepoint.metadata.version,
        contracts,
        [operator.metadata for operator in savepoint.operators],
        {BACKEND: backends.pop()} if len(backends) == 1 else {},
    )


def contract_of_import(restored: RestoredCheckpoint) -> JobContract:
    """Return the contract of the job whose savepoint was imported into a store.

    Args:
        restored: A checkpoint with the record of the import, which has the serializer snapshots.

    Raises:
        InvalidArgumentError: If the checkpoint was not imported from a savepoint.
    """
    record = SavepointRecord.of(restored)
    by_operator: dict[str, list[ImportedState]] = {}
    for state in record.states:
        by_operator.setdefault(state.operator, []).append(state)
    contracts = [
        OperatorContract(
            id=operator.id,
            name=operator.name or "",
            kind="operator",
            uid=operator.uid,
            states=(
                *_coordinator(operator.coordinator),
                *_unreadable(None if operator.is_imported else operator.problem or NOT_ASKED_FOR),
                *map(_imported_state, by_operator.get(operator.operator, ())),
            ),
        )
        for operator in record.operators
    ]
    return _job(record.metadata_version, contracts, record.operators, {})


def contract_of_plan(
    place: str,
    *,
    uid_format: str = UID_FORMAT,
    storage_options: Mapping[str, Any] | None = None,
) -> JobContract:
    """Return the contract of a compiled plan of Flink SQL.

    Args:
        place: The JSON file that ``COMPILE PLAN`` wrote, as a path or URL.
        uid_format: The job's ``table.exec.uid.format``, if it is not the default.
        storage_options: Options for the file system, as in ``open_storage``.

    Raises:
        NotFoundError: If the file does not exist.
        CorruptionError: If it is not a compiled plan.
        FormatVersionError: For a plan of a version of Flink whose layouts are not known.
        InvalidArgumentError: For the name of a folder, and if two operators have the same uid.
        StorageError: If the file cannot be read.
    """
    plan = read_flink_plan(place, uid_format=uid_format, storage_options=storage_options)
    return JobContract(engine=_ENGINE, version=plan.version, operators=tuple(_plan_operators(plan)))


def _plan_operators(plan: FlinkPlan) -> Iterator[OperatorContract]:
    for operator in plan.operators:
        states = (state.flink_state for state in operator.states)
        yield OperatorContract(
            id=operator.operator_id,
            name=operator.type,
            kind=PLANNED,
            uid=operator.operator,
            states=(
                *_unreadable(operator.problem),
                *(_keyed_state(state.info, state.key) for state in states),
            ),
        )


def _job(
    metadata_version: int,
    operators: Iterable[OperatorContract],
    handles: Iterable[OperatorHandles | ImportedOperator],
    settings: Mapping[str, str],
) -> JobContract:
    """Return the contract of a job whose operators have state, and their max parallelism."""
    with_state = {operator.id: operator for operator in operators if operator.states}
    texts = {
        each.id: _max_parallelism(each.parallelism, each.max_parallelism)
        for each in handles
        if each.id in with_state and each.max_parallelism > 0
    }
    usual = next((text for text, _ in Counter(texts.values()).most_common(1)), None)
    known = {} if usual is None else {MAX_PARALLELISM: usual}
    known |= {f"{MAX_PARALLELISM} of {each}": text for each, text in texts.items() if text != usual}
    major = find_flink_major(metadata_version)
    return JobContract(
        engine=_ENGINE,
        version="" if major is None else str(major),
        partitions=None if usual is None else int(usual.removesuffix(DERIVED)),
        settings={**settings, **known},
        operators=tuple(with_state.values()),
    )


def _max_parallelism(parallelism: int, max_parallelism: int) -> str:
    is_derived = max_parallelism == default_max_parallelism(parallelism)
    return f"{max_parallelism}{DERIVED if is_derived else ''}"


def _operator(metadata: OperatorHandles, operator: FlinkOperator) -> OperatorContract:
    """Return the contract of an operator, whose ``metadata`` has what cannot be read, too."""
    coordinator = None if metadata.coordinator is None else metadata.coordinator.data
    return OperatorContract(
        id=metadata.id,
        name=metadata.name or "",
        kind="operator",
        uid=metadata.uid,
        states=(
            *_coordinator(coordinator),
            *_unread_parts(metadata, operator),
            *_subtask_states(operator),
        ),
    )


def _unread_parts(metadata: OperatorHandles, operator: FlinkOperator) -> Iterator[StateContract]:
    """Yield the kinds of state that cannot be read, and the states of the asynchronous API."""
    kinds = {kind: what for subtask in metadata.subtasks for kind, what in unread_parts(subtask)}
    for kind, what in kinds.items():
        yield from _unreadable(f"it has {what}", kind.value)
    names = (
        info.name
        for part in operator.parts
        for info, state in zip(part.header.states, part.states, strict=True)
        if state is None
    )
    for name in dict.fromkeys(names):
        yield from _unreadable("it is a state of the asynchronous API (V2)", name)


def _subtask_states(operator: FlinkOperator) -> Iterator[StateContract]:
    """Yield the states of an operator; if they cannot be read, one state stands for all."""
    yield from _unreadable(operator.problem)
    header = operator.header
    if header is not None:
        yield from (_keyed_state(info, header.key.flink_type) for info in header.states)
    try:
        described = describe_operator_state(operator)
    except (FormatVersionError, UnsupportedTypeError) as error:
        yield from _unreadable(str(error))
        return
    for state in described:
        yield _operator_state(state.name, state.mode, state.value, state.key)


def _backend(operator: FlinkOperator) -> str | None:
    """Return the state backend that wrote an operator's keyed state; None if nothing tells it."""
    for part in operator.parts:
        if isinstance(part.handle, IncrementalHandle):
            return "rocksdb"
        if isinstance(part, KeyedPart) and not part.is_canonical:
            return "hashmap"
    return None


def _figures(shown: ShownSavepoint) -> dict[tuple[str, str, bool], tuple[int, int]]:
    """Return the rows and bytes of each state, by operator, name, and whether it is keyed."""
    figures = {}
    for operator in shown.operators:
        for keyed in operator.keyed:
            if keyed.entries is not None and keyed.size_bytes is not None:
                rows = sum(keyed.entries.values())
                figures[operator.operator_id, keyed.state, True] = rows, keyed.size_bytes
        for state in operator.operator:
            counts = state.elements.values()
            copies = len(counts) if state.mode == "broadcast" else 1
            rows = sum(counts) // copies
            figures[operator.operator_id, state.state, False] = rows, state.size_bytes // copies
    return figures


def _with_figures(
    operator: OperatorContract, figures: Mapping[tuple[str, str, bool], tuple[int, int]]
) -> OperatorContract:
    states = []
    for state in operator.states:
        is_keyed = state.kind not in MODES
        rows, size = figures.get((operator.id, state.name, is_keyed), (None, None))
        states.append(replace(state, rows=rows, bytes=size))
    return replace(operator, states=tuple(states))


def _keyed_state(info: StateInfo, key: FlinkType) -> StateContract:
    value = info.serializers[_VALUE].flink_type
    if isinstance(value, TimerType):
        form = {"key": type_form(value.key), "namespace": type_form(value.namespace)}
        return StateContract(name=info.name, kind=TIMERS, form=form)
    namespace = info.serializers[_NAMESPACE].flink_type
    form = {"key": type_form(key), "namespace": type_form(namespace), "value": type_form(value)}
    return StateContract(name=info.name, kind=info.options[_KIND_OPTION].lower(), form=form)


def _operator_state(name: str, mode: str, value: FlinkType, key: FlinkType | None) -> StateContract:
    known = {} if key is None else {"key": type_form(key)}
    return StateContract(name=name, kind=mode, form={**known, "value": type_form(value)})


def _imported_state(state: ImportedState) -> StateContract:
    info = state.info
    if state.is_keyed:
        contract = _keyed_state(info, state.key.flink_type)
    else:
        key = info.serializers.get(_KEY)
        value = info.serializers[_VALUE].flink_type
        contract = _operator_state(
            state.name, state.sort, value, None if key is None else key.flink_type
        )
    return replace(contract, rows=state.rows)


def _coordinator(data: bytes | None) -> Iterator[StateContract]:
    """Yield the state of a coordinator, whose bytes begin with the versions of two formats."""
    if data is not None:
        versions = {"versions": data[:_VERSION_BYTES].hex()}
        yield StateContract(name=COORDINATOR, kind=COORDINATOR, form=versions)


def _unreadable(problem: str | None, name: str = UNREADABLE) -> Iterator[StateContract]:
    """Yield a state that cannot be read, by default all of an operator.

    Its problem names no folder.
    """
    if problem is not None:
        form = {"problem": _FOLDERS.sub("", problem)}
        yield StateContract(name=name, kind=UNREADABLE, form=form)
