"""Compare the states of a store with the states that a job declares.

The store decides when a job writes its next checkpoint
(``statestore.snapshot.state_spec.keyed_state``): the identity of a state never changes, and its
value columns change as :mod:`statestore.format.schema` allows. A
:class:`~statestore.streaming.StatefulQuery` converts the stored rows first, if a column differs
(``statestore.streaming.query_options``), and then writes only changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from statestore.contract.model import (
    Finding,
    Form,
    JobContract,
    OperatorContract,
    StateContract,
    Verdict,
)
from statestore.errors import StateStoreError
from statestore.format.schema import Field, Schema, changed_columns, same_type, type_text
from statestore.format.state import TIME_TYPES

_FIXED = {
    "key": ("key", "--key-column"),
    "key_types": ("key types", None),
    "namespace": ("namespace", None),
    "entry": ("entry columns", None),
    "time_domain": ("time domain", None),
    "hash_scheme": ("hash scheme", "--hash-scheme"),
    "max_parallelism": ("max parallelism", "--max-parallelism"),
}
"""What never changes: the name of each member in messages, and the option of rekey that does."""


def compare_store(old: JobContract, new: JobContract) -> tuple[Finding, ...]:
    """Return a verdict for each state of a store, and for each state that the job declares."""
    stored = {operator.id: operator for operator in old.operators}
    declared = {operator.id: operator for operator in new.operators}
    return tuple(
        finding
        for uid in dict.fromkeys((*stored, *declared))
        for finding in _compare_operator(uid, stored.get(uid), declared.get(uid))
    )


def _compare_operator(
    uid: str, stored: OperatorContract | None, declared: OperatorContract | None
) -> Iterator[Finding]:
    before, now = _states(stored), _states(declared)
    for name, state in before.items():
        judged = _compare_state(uid, state, now.get(name))
        yield replace(judged, rows=state.rows, bytes=state.bytes)
    for name in now:
        if name not in before:
            reason, remedy = "the store has no such state", "statestore bootstrap TABLE --state"
            yield _finding(uid, name, Verdict.EMPTY, reason, f"{remedy} {uid}/{name}")


def _states(operator: OperatorContract | None) -> Mapping[str, StateContract]:
    return {} if operator is None else {state.name: state for state in operator.states}


def _finding(
    uid: str, name: str, verdict: Verdict, reason: str, remedy: str | None = None
) -> Finding:
    return Finding(operator=uid, state=name, verdict=verdict, reason=reason, remedy=remedy)


def _compare_state(uid: str, old: StateContract, new: StateContract | None) -> Finding:
    judged = partial(_finding, uid, old.name)
    if new is None:
        keep = f"statestore restore --to ./kept --state {uid}/{old.name}"
        return judged(Verdict.LOST, "the job does not declare it", keep)
    if new.kind and old.kind != new.kind:
        return judged(
            Verdict.UNFIT,
            f"the kind was {old.kind} and is {new.kind}, and the kind of a state cannot change",
        )
    for member, (name, option) in _FIXED.items():
        was, now = old.form.get(member), new.form.get(member, old.form.get(member))
        if was != now:
            reason = f"the {name} was {_text(was)} and is {_text(now)}, and cannot change"
            words = now if isinstance(now, list | tuple) else [now]
            options = " ".join(f"{option} {word}" for word in words)
            remedy = f"statestore rekey --state {uid}/{old.name} {options}" if option else None
            return judged(Verdict.UNFIT, reason, remedy)
    if "columns" not in new.form:
        return judged(Verdict.SAME, "the job does not say the columns of its elements")
    stored, declared = _schema(old.form), _schema(new.form)
    dropped = [*new.form.get("dropped", ()), *_dropped_time(old.form, new.form)]
    if refusal := _missing_in_changes(old.form, new.form, dropped):
        return judged(Verdict.UNFIT, refusal)
    try:
        columns = changed_columns(
            stored,
            declared,
            subject=f"state {old.name!r} of operator {uid!r}",
            fixed=[
                name for role in ("key", "namespace", "entry") for name in old.form.get(role, ())
            ],
            renamed=new.form.get("renamed", {}),
            dropped=dropped,
        )
    except StateStoreError as error:
        return judged(Verdict.UNFIT, str(error))
    before, ttl = old.form.get("ttl") or {}, new.form.get("ttl", old.form.get("ttl")) or {}
    if ttl and type_text(columns.types.get(ttl["column"], "missing")) not in TIME_TYPES:
        return judged(Verdict.UNFIT, f"the TTL needs a time in column {ttl['column']!r}")
    changes = list(_column_changes(stored, columns, new.form.get("renamed", {})))
    if before.get("column") != ttl.get("column"):
        changes.append(_ttl_change(before, ttl))
    if changes:
        gone = [name for name in stored.names if _is_lost(name, columns, new.form, dropped)]
        verdict = Verdict.LOST if gone else Verdict.CONVERTS
        return judged(verdict, f"all rows are written again: {'; '.join(changes)}")
    return judged(Verdict.SAME, "" if ttl == before else _ttl_change(before, ttl))


def _is_lost(name: str, columns: Schema, new: Form, dropped: Collection[str]) -> bool:
    """Return whether a stored column is gone although the job does not drop or rename it."""
    return name not in {*columns.names, *dropped, *new.get("renamed", {})}


def _ttl_change(before: Form, now: Form) -> str:
    return f"the TTL was {_text(before)} and is {_text(now)}"


def _dropped_time(old: Form, new: Form) -> list[str]:
    """Return the time column of a TTL that a query turns off, which the query drops itself."""
    column: str | None = (old.get("ttl") or {}).get("column")
    if column is None or column in new["columns"] or "ttl" not in new:
        return []
    return [column] if new.get("writes") == "changes" else []


def _missing_in_changes(old: Form, new: Form, dropped: list[str]) -> str | None:
    """Return why the changes of a query do not fit the stored columns, which they need all.

    A query that finds any other difference converts the rows, and its missing columns are gone.
    """
    if new.get("writes") != "changes":
        return None
    now, renamed = new["columns"], new.get("renamed", {})
    missing = [name for name in old["columns"] if name not in {*now, *dropped, *renamed}]
    differs = dropped or any(
        name not in old["columns"] or not same_type(old["columns"][name], data_type)
        for name, data_type in now.items()
    )
    if not missing or differs:
        return None
    return (
        f"the query writes no column {missing[0]!r}, which the stored rows have, and changes must "
        f"have the stored columns. Name it in dropped of the query's state"
    )


def _schema(form: Form) -> Schema:
    return Schema(
        tuple(Field(name, data_type) for name, data_type in sorted(form["columns"].items()))
    )


def _column_changes(old: Schema, new: Schema, renamed: Mapping[str, str]) -> Iterator[str]:
    before = {new_name: name for name, new_name in renamed.items() if name in old.types}
    for name, data_type in new.types.items():
        was = old.types.get(before.get(name, name))
        if was is None:
            yield f"column {name!r} ({type_text(data_type)}) is new"
        elif not same_type(was, data_type):
            yield f"column {name!r} is widened from {type_text(was)} to {type_text(data_type)}"
        elif name in before:
            yield f"column {before[name]!r} is renamed to {name!r}"
    for name in old.names:
        if name not in new.types and renamed.get(name) not in new.types:
            yield f"column {name!r} is gone"


def _text(value: Any) -> str:
    match value or None:
        case None:
            return "none"
        case Mapping():
            return ", ".join(f"{name} {item}" for name, item in sorted(value.items()))
        case list() | tuple():
            return f"({', '.join(map(str, value))})"
    return str(value)
