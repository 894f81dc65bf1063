"""Names that a document may have: those that its writer would have given, and no others.

A document is read by whoever can, and written by whoever could. So a name in it is not believed: a
state's table lies in its operator's folder, and a file of it has the name of such a file. What is
held to that cannot lead out of the store, or into another state's table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from statestore.model.document import Node
from statestore.model.paths import (
    is_operator_file,
    is_ranged_file,
    key_group_of_file,
    table_of,
)

__all__ = [
    "refuse_foreign_folder",
    "refuse_misplaced_files",
    "refuse_other_files",
    "what_is_twice",
]

Sort = Literal["keyed", "changes", "operator"]


def refuse_foreign_folder(
    path: Node, sort: Sort, uid: str, state: str, *, relabelled: bool
) -> None:
    """Raise MalformedManifestError unless the path is that of the table of this state.

    ``relabelled`` says that the operator may have had another label when the table was made, as
    one can that has no uid but a place in a job graph.
    """
    found = table_of(path.text())
    if found is None or found[1:] != (sort, state) or (found[0] != uid and not relabelled):
        raise path.fail(
            f"{path.text()!r} is not the folder of the {sort} table of state {state!r} of operator "
            f"{uid!r}"
        )


def what_is_twice(folders: Iterable[tuple[str, str, str]]) -> str | None:
    """Return in words which two states have one name, or one table; None when none have.

    ``folders`` are (operator uid, state, path) of each state.
    """
    states: set[tuple[str, str]] = set()
    owners: dict[str, tuple[str, str]] = {}
    for uid, state, path in folders:
        if (uid, state) in states:
            return f"state {state!r} of operator {uid!r} is there twice"
        if path in owners:
            return f"states {owners[path]} and {(uid, state)} have one table, {path!r}"
        states.add((uid, state))
        owners[path] = uid, state
    return None


def refuse_misplaced_files(files: Node) -> None:
    """Raise MalformedManifestError unless each file lies in the folder of its key group."""
    names, groups = files.at("path"), files.at("first").numbers()
    for name, group in zip(names.texts(), groups, strict=True):
        if key_group_of_file(name) != group:
            raise names.fail(f"{name!r} is not the name of a data file of key group {group}")


def refuse_other_files(files: Node, sort: Literal["ranged", "operator"]) -> None:
    """Raise MalformedManifestError unless each file has the name of such a data file."""
    is_own: Callable[[str], bool] = is_ranged_file if sort == "ranged" else is_operator_file
    names = files.at("path")
    for name in names.texts():
        if not is_own(name):
            raise names.fail(f"{name!r} is not the name of a data file of {sort} state")
