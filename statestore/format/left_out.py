"""State that a checkpoint lacks although its source had it (I16).

A command that cannot convert all of its source records the omissions in the manifest of its
checkpoint. Later checkpoints that build on that one inherit the record, until the missing state is
written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from statestore.errors import LeftOutStateError
from statestore.jobgraph.operators import operator_id

Name = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class LeftOutState:
    """State of the source that a checkpoint lacks.

    Attributes:
    operator: the operator as the store names it: its uid, if it has one.
    state: the state. None: all state of the operator.
    reason: why it was left out.
    command: the command that left it out, such as ``flink import``.
    id: the operator id, 32 hex digits; None if it is unknown.
    name: the operator's display name in its job; None if it is unknown.
    first, last: the missing key groups; None: all of the state.
    """

    operator: str
    state: str | None
    reason: str
    command: str
    id: str | None = None
    name: str | None = None
    first: int | None = None
    last: int | None = None

    @property
    def label(self) -> str:
        """The left-out state in options and messages: ``operator`` or ``operator/state``.

        If only some key groups of a state are missing, it is ``operator/state:first-last``.
        """
        return f"{self.operator}{self._suffix}"

    @property
    def part(self) -> str:
        """The label without the operator and the slash; empty for all state of the operator."""
        return self._suffix.removeprefix("/")

    @property
    def _suffix(self) -> str:
        if self.state is None:
            return ""
        groups = "" if self.first is None else f":{self.first}-{self.last}"
        return f"/{self.state}{groups}"

    def __str__(self) -> str:
        """Return the label and the reason, for messages."""
        return f"{self.label} ({self.reason})"

    def lacks(self, operator: str, state: str, key_group: int | None = None) -> bool:
        """Return whether a state is missing, as a whole or in part.

        Args:
            operator: its operator.
            state: the state.
            key_group: the only key group that matters; None: any.

        Returns:
            True if rows or elements of it are missing.
        """
        if operator != self.operator or self.state not in (None, state):
            return False
        if key_group is None or self.first is None:
            return True
        return self.first <= key_group <= (self.first if self.last is None else self.last)

    def is_named(self, text: str) -> bool:
        """Return whether a user's text refers to this record.

        Args:
            text: an operator by uid, name or operator id; or one of these, a slash and the state,
                with or without the key groups as in ``label``.

        Returns:
            True if it refers to this state or to all state of its operator.
        """
        operators = {self.operator, self.id, self.name} - {None}
        states = {"", self._suffix, "" if self.state is None else f"/{self.state}"}
        if text in {f"{operator}{state}" for operator in operators for state in states}:
            return True
        return self.id is not None and operator_id(text) == self.id


def left_out_of(
    records: Iterable[LeftOutState], operator: str | None, state: str | None
) -> tuple[LeftOutState, ...]:
    """Return the records that are relevant to a reader of some states.

    Args:
    records: the state that a checkpoint lacks.
    operator: the only operator that is read, None for all.
    state: the only state name that is read, None for all.

    Returns:
    The records of the operator and the state, in the same order.
    """
    return tuple(
        record
        for record in records
        if operator in (None, record.operator) and (state is None or record.state in (None, state))
    )


def left_out_text(records: Iterable[LeftOutState]) -> str:
    """Return all records in one line, for messages."""
    return "; ".join(map(str, records))


def refuse_left_out(
    records: Iterable[LeftOutState],
    named: Collection[str],
    checkpoint_id: int,
    reader: str,
    *,
    otherwise: str = "",
) -> None:
    """Refuse to export a checkpoint that lacks state of its source (I16).

    Args:
    records: the state that it lacks.
    named: the texts by which the user accepts missing state.
    checkpoint_id: its id, for the message.
    reader: the reader that would start without that state, such as ``a job that restores the
    savepoint``.
    otherwise: an alternative for the user, as the end of the message.

    Raises:
    LeftOutStateError: if there are records that the user did not name; it lists them.
    """
    unnamed = [record for record in records if not any(map(record.is_named, named))]
    if unnamed:
        options = " ".join(f"--leave-out {record.label!r}" for record in unnamed)
        raise LeftOutStateError(
            f"checkpoint {checkpoint_id} lacks some state of its source, and {reader} would "
            f"start without it: {left_out_text(unnamed)}. To accept this, pass {options} "
            f"(leave_out= in Python){otherwise}"
        )


def still_left_out(
    records: Iterable[LeftOutState],
    *,
    stored: Collection[Name],
    present: Collection[Name],
    rewritten: Collection[Name],
) -> tuple[LeftOutState, ...]:
    """Return the records of a checkpoint that also apply to the checkpoint that builds on it.

    A record ends when the missing state is written. If the earlier checkpoint has a part of the
    state, changes do not restore the rest, so only writing all rows ends the record. Dropping the
    state also ends it.

    Args:
    records: the records of the earlier checkpoint.
    stored: operator and name of each state in the earlier checkpoint.
    present: operator and name of each state in the new checkpoint.
    rewritten: the states of the new checkpoint that were written with all of their rows.

    Returns:
        The records that remain, in the same order.
    """
    return tuple(
        record for record in records if not _is_settled(record, stored, present, rewritten)
    )


def _is_settled(
    record: LeftOutState,
    stored: Collection[Name],
    present: Collection[Name],
    rewritten: Collection[Name],
) -> bool:
    if record.state is None:
        return any(uid == record.operator for uid, _ in present)
    name = record.operator, record.state
    if name not in stored:
        return name in present
    return name in rewritten or name not in present
