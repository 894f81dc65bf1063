"""Damaged files of golden snapshots of real Flink. Each is read, repacked or imported."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa

from statestore import StateStore
from statestore.errors import IncompatibleStateError, StateStoreError, UnsupportedTypeError
from statestore.interop.flink import import_savepoint, repack_savepoint, show_savepoint
from statestore.interop.flink.metadata.handles import (
    IncrementalHandle,
    KeyGroupsHandle,
    OperatorHandles,
)
from statestore.interop.flink.options import SavepointAccess
from statestore.interop.flink.read.savepoint import FlinkOperator, open_savepoint
from tests.damages.damage import Attempt, damage
from tests.interop.flink.goldens import GOLDENS, Golden

__all__ = ["Savepoints"]

ACTIONS = {"show": 140, "rows": 50, "repack": 8, "import": 2}
_ALL_BYTES = ("opaque", "person", "list_person", "nested_list", "nested_map", "nested")
_NO_END = "so its end is unknown"  # the error for hashmap values without a length

Found = dict[str, Any]
"""The result of a read, by the item's name. A value that starts with a number gives the
row count.
"""


@dataclass(frozen=True)
class Case:
    """A golden snapshot in a folder, and the results of reading it undamaged."""

    golden: Golden
    folder: Path

    @cached_property
    def place(self) -> Path:
        """The folder with ``_metadata``."""
        return self.golden.unpack(self.folder)

    @property
    def moved(self) -> dict[str, str]:
        """The current location of its absolute paths."""
        return {str(self.golden.about["written_at"]): str(self.folder)}

    @cached_property
    def files(self) -> list[Path]:
        """The files that a corruption can select."""
        _ = self.place
        return sorted(one for one in self.folder.rglob("*") if one.is_file() and one.stat().st_size)

    @cached_property
    def operators(self) -> list[FlinkOperator]:
        """The snapshot's operators."""
        return list(
            open_savepoint(str(self.place), access=SavepointAccess(moved=self.moved)).operators
        )

    @cached_property
    def unreadable(self) -> set[int]:
        """The operators with values that cannot be read, such as some Kryo values."""
        found = set()
        for number, one in enumerate(self.operators):
            try:
                _rows(one)
            except (IncompatibleStateError, UnsupportedTypeError):
                found.add(number)
        return found

    def read(self, action: str, file: Path | None, work: Path) -> Found:
        """Return the result of an action. For a corrupted file, return every item that the file can
        affect.
        """
        place = str(self.place)
        if action == "show":
            return _shown(place, self.moved)
        if action == "rows":
            return dict(self._rows(file))
        if action == "repack":
            return _repacked(place, self.moved, work)
        return _imported(place, self.moved, work)

    def _rows(self, file: Path | None) -> Iterator[tuple[str, Any]]:
        """Yield the rows of the operators that use a file. Other operators are unaffected."""
        found = open_savepoint(str(self.place), access=SavepointAccess(moved=self.moved)).operators
        yield "operators", [one.metadata.id for one in found]
        for number, one in enumerate(found):
            before = self.operators[number].metadata if number < len(self.operators) else None
            is_same = file is not None and before == one.metadata
            if number in self.unreadable:
                continue
            if is_same and file is not None and file.name not in _files(one.metadata):
                continue
            yield f"{number} ", []
            for name, rows in _rows(one).items():
                yield f"{number} {name}", rows


def _files(operator: OperatorHandles) -> set[str]:
    streams: list[Any] = []
    for subtask in operator.subtasks:
        streams += [] if subtask.operator is None else [subtask.operator.stream]
        if isinstance(subtask.keyed, KeyGroupsHandle):
            streams.append(subtask.keyed.stream)
        if isinstance(subtask.keyed, IncrementalHandle):
            streams += [subtask.keyed.meta]
            streams += [stream for _, stream in (*subtask.keyed.shared, *subtask.keyed.private)]
    return {Path(one.path).name for one in streams if hasattr(one, "path")}


def _rows(operator: FlinkOperator) -> Found:
    if operator.problem is not None:
        raise IncompatibleStateError(f"operator {operator.title} is not read: {operator.problem}")
    found: dict[str, list[Any]] = {one.name: [0] for one in operator.states}
    for rows in operator.rows(as_bytes=_ALL_BYTES):
        state = found[rows.state.name]
        state[0] += len(rows)
        columns = (rows.key, rows.namespace, rows.map_key, rows.value, rows.time)
        state.append((rows.key_group, *map(_stored, columns)))
    for part in operator.operator_state():
        name = f"of operator {part.info.name}"
        state = found.setdefault(name, [0])
        state[0] += part.count()
        state.append((part.subtask, part.info.mode, part.raw.arrow().to_pylist()))
    return dict(found)


def _stored(column: pa.Array | None) -> bytes | None:
    if column is None:
        return None
    return bytes(pa.record_batch([column], ["column"]).serialize())


def _shown(place: str, moved: dict[str, str]) -> Found:
    shown = show_savepoint(place, access=SavepointAccess(moved=moved))
    found: Found = {"about": replace(shown, operators=())}
    for number, one in enumerate(shown.operators):
        if one.problem is not None and _NO_END not in one.problem:
            raise IncompatibleStateError(f"operator {one.operator_id} is not read: {one.problem}")
        found[f"{number}"] = replace(one, keyed=(), operator=())
        for place_of, keyed in enumerate(one.keyed):
            entries = keyed.entries or {}
            found[f"{number} keyed {place_of}"] = [sum(entries.values()), keyed]
        for place_of, state in enumerate(one.operator):
            count = sum(state.elements.values())
            found[f"{number} operator {place_of}"] = [count, state]
    return found


def _repacked(place: str, moved: dict[str, str], work: Path) -> Found:
    done = repack_savepoint(
        place, str(work / "repacked"), max_parallelism=256, access=SavepointAccess(moved=moved)
    )
    found: Found = {
        f"{operator.operator_id} {state}": [count]
        for operator in done.operators
        for state, count in operator.entries.items()
    }
    files = sorted((work / "repacked").iterdir())
    return found | {"files": [[file.name, file.read_bytes()] for file in files]}


def _imported(place: str, moved: dict[str, str], work: Path) -> Found:
    store = StateStore.open(str(work / "store"))
    record = import_savepoint(place, store, access=SavepointAccess(moved=moved)).record
    for operator in record.operators:
        if operator.problem is not None and _NO_END not in operator.problem:
            raise IncompatibleStateError(
                f"operator {operator.operator} is not read: {operator.problem}"
            )
    found: Found = {"about": replace(record, operators=(), states=(), digest="")}
    found |= {f"operator {at}": one for at, one in enumerate(record.operators)}
    return found | {f"state {at}": [one.rows, one] for at, one in enumerate(record.states)}


class Savepoints:
    """The golden snapshots, of which each process unpacks the ones that it draws."""

    allowed: ClassVar[frozenset[str]] = frozenset({"found", "same", "warned", "changed", "moved"})

    def __init__(self, folder: Path) -> None:
        self._work = folder / "work"
        self._cases = [Case(golden, folder / golden.name) for golden in GOLDENS]
        self._wholes: dict[tuple[str, str], Found] = {}

    def draw(self, random: Random) -> Attempt:
        """Draw a snapshot, one of its files, a damage, and a reader."""
        case, action = (
            random.choice(self._cases),
            random.choices([*ACTIONS], [*ACTIONS.values()])[0],
        )
        if action == "repack" and case.golden.name.endswith("heap_native"):
            action = "rows"  # this snapshot has an operator that repack refuses
        key = case.golden.name, action
        if key not in self._wholes:
            with self._working():
                self._wholes[key] = case.read(action, None, self._work)
        file = random.choice(case.files) if random.random() < 0.5 else case.place / "_metadata"
        what, damaged = damage(random, file.read_bytes())
        described = f"{action}, {case.golden.name}/{file.name}, {what}"
        return Attempt(described, file, damaged, lambda: self._read(case, action, file))

    def _read(self, case: Case, action: str, file: Path) -> str:
        with self._working():
            return outcome(case, action, file, self._wholes[case.golden.name, action], self._work)

    @contextmanager
    def _working(self) -> Iterator[None]:
        self._work.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(self._work)


def outcome(case: Case, action: str, file: Path, whole: Found, work: Path) -> str:
    """Return the outcome of a corruption.

    * ``same``: the result equals the original.
    * ``found``: a typed error, which names the file or the operator.
    * ``changed``: each state has its original number of rows, but a row or a property differs.
    * ``warned``: the same, and ``show`` names a sign of damage.
    * ``moved``: the number of rows is the same, but some belong to another state.

    Any other text describes a failure. An untyped error is raised.
    """
    try:
        found = case.read(action, file, work)
    except StateStoreError as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", ())])
        if str(case.folder) not in said and " state of " not in said and "operator" not in said:
            return f"no file is named: {said}".replace("\n", " ")
        is_left = action == "repack" and (work / "repacked" / "_metadata").exists()
        return "a savepoint is left" if is_left else "found"
    meant = {name.partition(" ")[0] for name in found}
    wanted = {name: one for name, one in whole.items() if name.partition(" ")[0] in meant}
    if found == wanted:
        return "same"
    counts, before = (sorted(map(_number, one.values())) for one in (found, wanted))
    if sum(counts) != sum(before):
        return f"rows are lost or added: {sum(counts)} of {sum(before)}"
    if [*filter(None, counts)] != [*filter(None, before)]:
        return "moved"
    shown = show_savepoint(str(case.place), access=SavepointAccess(moved=case.moved))
    return "warned" if any(operator.implausible for operator in shown.operators) else "changed"


def _number(value: Any) -> int:
    is_counted = isinstance(value, list) and bool(value) and isinstance(value[0], int)
    return int(value[0]) if is_counted else 0
