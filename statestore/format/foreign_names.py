"""The names that a document may contain: only names that its writer would create.

A document may have been written by anybody, so its names are not trusted. A state's table must be
in its operator's folder, and a data file must have the name of such a file. Such names cannot
lead out of the store or into another state's table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from statestore.format.documents import (
    member_error,
)
from statestore.format.names import (
    table_of,
)
from statestore.format.state import KeyedState, OperatorState

__all__ = ["Sort", "duplicate_problem", "refuse_foreign_folder"]


Sort = Literal["keyed", "changes", "operator"]


def refuse_foreign_folder(
    path: str, sort: Sort, state: KeyedState | OperatorState, member: str, relabelled: bool
) -> None:
    """Refuse a path, found in ``member``, that is not the folder of this state's table.

    If ``relabelled``, the operator may have had another label when the table was created. That can
    happen to an operator that has a place in a job graph but no uid.
    """
    folder = table_of(path)
    own = folder is not None and folder[1:] == (sort, state.name)
    if folder is None or not own or (folder[0] != state.uid and not relabelled):
        message = f"{path!r} is not a valid folder for the {sort} table of {state}"
        raise member_error(member, message)


def duplicate_problem(folders: Iterable[tuple[str, str, str]]) -> str | None:
    """Return a message about two states with the same name or table; None if all differ.

    ``folders`` has (operator uid, state, path) of each state.
    """
    states: set[tuple[str, str]] = set()
    owners: dict[str, tuple[str, str]] = {}
    for uid, state, path in folders:
        if (uid, state) in states:
            return f"state {state!r} of operator {uid!r} occurs twice"
        if path in owners:
            return f"states {owners[path]} and {(uid, state)} have the same table {path!r}"
        states.add((uid, state))
        owners[path] = uid, state
    return None
