"""Keep the names of a checkpoint's states unique, also after case folding.

Names that differ only in case or in Unicode normalization fold to the same name. If a file system
folds case, the folders of two such names are the same folder. A listing then has one spelling and a
manifest the other, so a collection would treat the files of the second name as dead. So a name that
folds to another's is refused, on any storage, because a store may be copied. Two such names that a
store already has are accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Entry
from statestore.format.names import fold_name, keyed_table, operator_table

Name = tuple[str, str]
"""The uid of an operator, and the name of a state."""


def name_of(entry: Entry) -> Name:
    """Return operator uid and name of a state."""
    return entry.state.uid, entry.state.name


class TakenNames:
    """The states of one checkpoint by name and by table, and the names of its predecessor."""

    def __init__(self, stored: Iterable[Name]) -> None:
        """Start with no states; ``stored`` names the states of the newest checkpoint."""
        self._stored = frozenset(stored)
        self._stored_operators = frozenset(uid for uid, _ in self._stored)
        self._states: dict[Name, Entry] = {}
        self._owners: dict[str, Name] = {}
        self._operators: defaultdict[str, set[str]] = defaultdict(set)
        self._of_operator: defaultdict[Name, set[str]] = defaultdict(set)
        for name in self._stored:
            self._add_folded(name)

    def add(self, entry: Entry) -> None:
        """Add a state that was written, declared or carried."""
        name = name_of(entry)
        self._states[name] = entry
        self._owners[entry.table.path] = name
        self._add_folded(name)

    def refuse(self, uid: str, name: str, table: str | None = None) -> None:
        """Raise InvalidArgumentError for a state that conflicts with one of the others.

        Args:
            uid: the operator.
            name: the state.
            table: the folder of its table; None if the state will be written in full.
        """
        if (uid, name) in self._states:
            raise InvalidArgumentError(
                f"{self._states[uid, name].state} is already in this checkpoint; name it only once"
            )
        self._refuse_folded(uid, name)
        for path in (
            (keyed_table(uid, name), operator_table(uid, name)) if table is None else [table]
        ):
            if path in self._owners:
                self._refuse_shared(path, (uid, name), is_new=table is None)

    def _add_folded(self, name: Name) -> None:
        self._operators[fold_name(name[0])].add(name[0])
        self._of_operator[name[0], fold_name(name[1])].add(name[1])

    def _refuse_folded(self, uid: str, name: str) -> None:
        for other in sorted(self._operators[fold_name(uid)] - {uid}):
            if not {uid, other} <= self._stored_operators:
                raise _clash("operators", other, uid)
        for other in sorted(self._of_operator[uid, fold_name(name)] - {name}):
            if not {(uid, name), (uid, other)} <= self._stored:
                raise _clash(f"states of operator {uid!r}", other, name)

    def _refuse_shared(self, table: str, name: Name, *, is_new: bool) -> None:
        """Refuse a state whose table already belongs to another operator's carried state.

        That operator had another label when the table was written.
        """
        other = self._owners[table]
        written, carried = (name, other) if is_new else (other, name)
        raise InvalidArgumentError(
            f"state {written[1]!r} of operator {written[0]!r} would be written to the table "
            f"of state {carried[1]!r} of operator {carried[0]!r}, {table}, because that "
            f"operator was named {written[0]!r} when its state was written. Instead of "
            f"carrying or changing the state of {carried[0]!r}, write it in full in this "
            f"checkpoint: checkpoint.write_keyed({carried[0]!r}, {carried[1]!r}, …); or give the "
            "new operator another name"
        )


def _clash(label: str, name: str, other: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{label} {name!r} and {other!r} differ only in case or Unicode normalization: on a "
        "file system that ignores case, their files would be in the same folder and could "
        "not be distinguished; rename one"
    )
