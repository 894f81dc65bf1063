"""Compare the state of a Flink job with a new version of the job, by Flink's rules.

- ``Checkpoints.loadAndValidateCheckpoint``: operators by their id, and the max parallelism.
- ``RegisteredKeyValueStateBackendMetaInfo.checkStateMetaInfo`` and
  ``DefaultOperatorStateBackend.checkStateNameAndMode``: the kind of a state.
- ``HeapRestoreOperation``, ``RocksDBKeyedStateBackend`` and ``InternalTimerServiceImpl``: keys and
  namespaces cannot migrate.
- ``TtlAwareSerializerSnapshot``: since Flink 2.0 a change of the TTL is a migration.
- ``RocksDBKeyedStateBackend.migrateStateValues``: the keys of a map cannot migrate.
- :mod:`.flink_serializers`: all other types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from statestore.contract.flink_serializers import Resolver
from statestore.contract.model import (
    AS_IS,
    Finding,
    Fit,
    JobContract,
    Level,
    OperatorContract,
    StateContract,
    Verdict,
    fit_of,
    worst,
)

__all__ = [
    "BACKEND",
    "COORDINATOR",
    "DERIVED",
    "MAX_PARALLELISM",
    "PLANNED",
    "TIMERS",
    "UNREADABLE",
    "compare_flink",
]

BACKEND, MAX_PARALLELISM = "state backend", "max parallelism"
"""The names of settings: the backend, if it is known, and the max parallelism of operators.

``max parallelism`` is that of most operators, and ``max parallelism of ID`` that of another one.
"""
DERIVED = " (derived, or set to the value that Flink derives)"
"""What follows a max parallelism that the job may not have set itself."""

COORDINATOR, TIMERS, UNREADABLE = "coordinator", "timers", "unreadable"
"""Kinds of states besides those of Flink; an unreadable one of that name is a whole operator."""

PLANNED = "planned"
"""The kind of an operator of a compiled plan, which describes neither its timers nor sources."""

_ROCKSDB, _HASHMAP = "rocksdb", "hashmap"
_ANY_KIND = "unknown"
_LISTS, _BROADCAST = ("split", "union"), "broadcast"
_TTL = "TtlSerializer"
_NOT_IN_TABLES = (COORDINATOR, TIMERS, UNREADABLE)
"""Kinds of states that no table describes."""
_VERDICTS = {
    Level.AS_IS: Verdict.SAME,
    Level.RECONFIGURED: Verdict.CONVERTS,
    Level.MIGRATION: Verdict.CONVERTS,
    Level.UNKNOWN: Verdict.UNKNOWN,
    Level.DROPS: Verdict.LOST,
    Level.INCOMPATIBLE: Verdict.UNFIT,
}


def compare_flink(old: JobContract, new: JobContract) -> tuple[Finding, ...]:
    """Return a verdict for each state of a job's old and new version, and for the whole job."""
    return (*_compare_jobs(old, new), *_compare_states(old, new))


def _compare_jobs(old: JobContract, new: JobContract) -> Iterator[Finding]:
    if (_major(old), _major(new)) == (2, 1):
        yield Finding(
            verdict=Verdict.UNFIT,
            reason="Flink 2 wrote the state, and no Flink 1 reads the metadata of Flink 2",
        )
    known = {operator.id for operator in new.operators}
    changes: dict[tuple[str, str], list[str]] = {}
    for operator in old.operators:
        was, now = (_max_parallelism(job, operator.id) for job in (old, new))
        if operator.id in known and was and now and _number(was) != _number(now):
            changes.setdefault((_number(was), now), []).append(_title(operator))
    for (was, now), titles in changes.items():
        verdict = Verdict.UNKNOWN if now.endswith(DERIVED) else Verdict.UNFIT
        reason = f"the max parallelism was {was} and is {_number(now)}: Flink refuses another one"
        if verdict == Verdict.UNKNOWN:
            reason += ", unless the job leaves it to Flink, which then takes that of the state"
        for title in [None] if len(titles) == len(old.operators) else titles:
            yield Finding(
                operator=title,
                verdict=verdict,
                reason=reason,
                remedy=f"statestore flink repack SAVEPOINT NEW --max-parallelism {_number(now)}",
            )


def _max_parallelism(job: JobContract, operator_id: str) -> str:
    usual = job.settings.get(MAX_PARALLELISM, "")
    return job.settings.get(f"{MAX_PARALLELISM} of {operator_id}", usual)


def _number(text: str) -> str:
    return text.removesuffix(DERIVED)


def _compare_states(old: JobContract, new: JobContract) -> Iterator[Finding]:
    before, after = ({each.id: each for each in job.operators} for job in (old, new))
    added = [operator for operator in new.operators if operator.id not in before]
    for operator in old.operators:
        if operator.id in after:
            yield from _Operators(old, new, operator, after[operator.id]).findings()
        else:
            yield from _lost_operator(operator, added)
    for operator in added:
        for state in operator.states:
            yield _empty(operator, state, "the old job has no operator with this id")


def _lost_operator(operator: OperatorContract, added: list[OperatorContract]) -> Iterator[Finding]:
    """Yield a verdict for each state of an operator that the new version does not have."""
    reason = (
        f"the new version has no state of an operator with the id {operator.id}; if it has no such "
        "operator, Flink refuses to start without --allowNonRestoredState"
    )
    names = {(state.name, state.kind) for state in operator.states}
    for other in added:
        if names and names == {(state.name, state.kind) for state in other.states}:
            uid = f"the uid {operator.uid!r}" if operator.uid else f"the uidHash {operator.id}"
            reason += f". Its operator {_title(other)} has the same states: give it {uid}"
            break
    for state in operator.states:
        yield _finding(operator, state, Verdict.LOST, reason, _leave_out(_title(operator)))


def _leave_out(name: str) -> str:
    """Return the command that writes a savepoint without an operator or state."""
    return f"statestore flink export NEW --leave-out {name} --store STORE"


def _empty(operator: OperatorContract, state: StateContract, reason: str) -> Finding:
    remedy = _bootstrap(operator, state, "STORE")
    state = replace(state, rows=None, bytes=None)
    return _finding(operator, state, Verdict.EMPTY, reason, remedy)


def _bootstrap(operator: OperatorContract, state: StateContract, store: str) -> str | None:
    """Return the command that makes a state from a table; None if a table cannot have it."""
    if state.kind in _NOT_IN_TABLES:
        return None
    plan = " --flink-plan JOB.json" if operator.kind == PLANNED else ""
    name = f"{_title(operator)}/{state.name}"
    return f"statestore bootstrap TABLE{plan} --state {name} --store {store}"


def _finding(
    operator: OperatorContract,
    state: StateContract,
    verdict: Verdict,
    reason: str,
    remedy: str | None = None,
) -> Finding:
    return Finding(
        operator=_title(operator),
        state=None if (state.kind, state.name) == (UNREADABLE, UNREADABLE) else state.name,
        verdict=verdict,
        reason=reason,
        remedy=remedy,
        rows=state.rows,
        bytes=state.bytes,
    )


def _title(operator: OperatorContract) -> str:
    return operator.uid or operator.name or operator.id


class _Operators:
    """An operator of the old job, and the one with the same id in the new job."""

    def __init__(
        self,
        old_job: JobContract,
        new_job: JobContract,
        old: OperatorContract,
        new: OperatorContract,
    ) -> None:
        # Not every savepoint has uids and names, and both versions need the same one.
        self._old, self._new = old, replace(new, uid=old.uid, name=_title(old))
        self._backend = new_job.settings.get(BACKEND)
        self._new_flink = _major(new_job)
        self._resolver = Resolver(_major(old_job), self._new_flink)

    def findings(self) -> Iterator[Finding]:
        """Yield a verdict for each state of both."""
        before, after = (
            {_slot(state): state for state in each.states} for each in (self._old, self._new)
        )
        unread = {each.name: each for each in self._new.states if each.kind == UNREADABLE}
        for slot, state in before.items():
            if state.kind == UNREADABLE:
                yield _unknown(self._old, state, "old", state)
            elif slot in after:
                fit = self._resolve(state, after[slot])
                yield self._judged(state, fit, "serializers", after[slot])
            elif state.name in unread or UNREADABLE in unread:
                problem = unread.get(state.name) or unread[UNREADABLE]
                yield _unknown(self._old, state, "new", problem)
            elif self._new.kind == PLANNED and (state.kind == TIMERS or not self._new.states):
                yield self._not_planned(state)
            else:
                yield self._undeclared(state)
        is_known = all(state.kind != UNREADABLE for state in self._old.states)
        for slot, state in after.items():
            if slot not in before and is_known and state.kind != UNREADABLE:
                yield _empty(self._new, state, "the old operator has no state with this name")

    def _not_planned(self, state: StateContract) -> Finding:
        """Return a verdict about what a compiled plan does not describe."""
        planned = next((other for other in self._new.states if "key" in other.form), None)
        if planned is None:
            reason = "a compiled plan does not describe the state of a source"
            return _finding(self._old, state, Verdict.UNKNOWN, reason)
        return self._judged(state, self._fixed(state, planned, "key"), "keys", state)

    def _judged(self, old: StateContract, fit: Fit, subject: str, new: StateContract) -> Finding:
        reason = fit.text or f"the {subject} are compatible as they are"
        remedy = fit.remedy
        if remedy is None and fit.level in (Level.DROPS, Level.INCOMPATIBLE):
            remedy = _bootstrap(self._new, new, "NEW_STORE")
        return _finding(self._old, old, _VERDICTS[fit.level], reason, remedy)

    def _undeclared(self, state: StateContract) -> Finding:
        kinds = [other.kind for other in self._new.states if other.name == state.name]
        reason = (
            f"the {state.kind} state is a {kinds[0]} state now, which Flink keeps separately"
            if kinds
            else "the new version does not declare it, or only with the first record, such as the "
            "state of a window's trigger: Flink starts, and keeps the state without reading it"
        )
        name = f"{_title(self._old)}/{state.name}"
        remedy = None if state.kind in _NOT_IN_TABLES else _leave_out(name)
        return _finding(self._old, state, Verdict.LOST, reason, remedy)

    def _resolve(self, old: StateContract, new: StateContract) -> Fit:
        if old.kind == COORDINATOR:
            return _coordinator(old, new)
        if old.kind != new.kind and _ANY_KIND not in (old.kind, new.kind):
            return fit_of(
                Level.INCOMPATIBLE, f"it was a {old.kind} state and is a {new.kind} state"
            )
        if old.kind in _LISTS or old.kind == _BROADCAST:
            parts = [name for name in ("key", "value") if name in old.form]
            return worst(self._part(old, new, name) for name in parts)
        fixed = [self._fixed(old, new, name) for name in ("key", "namespace")]
        if old.kind == TIMERS:
            return worst(fixed)
        return worst((*fixed, self._value(old, new)))

    def _part(self, old: StateContract, new: StateContract, name: str) -> Fit:
        return self._resolver.resolve(old.form[name], new.form[name], name)

    def _fixed(self, old: StateContract, new: StateContract, name: str) -> Fit:
        """Return the fit of keys or namespaces, which Flink never writes anew."""
        fit = self._part(old, new, name)
        if fit.level in (Level.MIGRATION, Level.DROPS):
            return fit_of(
                Level.INCOMPATIBLE, f"{fit.text}; the {name} of a state cannot migrate", fit.remedy
            )
        return fit

    def _value(self, old: StateContract, new: StateContract) -> Fit:
        (was, had_ttl), (now, has_ttl) = (
            _without_ttl(state.form["value"], state.kind) for state in (old, new)
        )
        fits = [self._resolver.resolve(was, now, "value")]
        if had_ttl != has_ttl:
            fits.append(self._changed_ttl(is_on=has_ttl))
        if old.kind == "map" and not isinstance(was, str) and not isinstance(now, str):
            fits.append(self._map_key(was, now, worst(fits)))
        return worst(fits)

    def _changed_ttl(self, *, is_on: bool) -> Fit:
        if is_on:
            change = "a TTL is added, and each value counts as accessed at the restart"
        else:
            change = "the TTL is removed, and with it the time of the last access"
        if self._new_flink is None:
            return fit_of(Level.UNKNOWN, f"{change}: Flink 2 converts the values, Flink 1 refuses")
        if self._new_flink == 1:
            return fit_of(Level.INCOMPATIBLE, f"{change}: Flink 1 refuses such a change")
        return fit_of(Level.MIGRATION, change)

    def _map_key(self, old: Mapping[str, Any], new: Mapping[str, Any], whole: Fit) -> Fit:
        """Return what the keys of a map need: RocksDB has them in its own keys."""
        fit = self._resolver.resolve(old["nested"][0], new["nested"][0], "value.key")
        must_move = whole.level in (Level.MIGRATION, Level.DROPS)
        if fit.level == Level.AS_IS or not must_move or self._backend == _HASHMAP:
            return AS_IS
        reason = "value.key: the keys of a map cannot migrate with the state backend rocksdb"
        if self._backend == _ROCKSDB:
            return fit_of(Level.INCOMPATIBLE, reason)
        return fit_of(Level.UNKNOWN, f"{reason}, but with hashmap")


def _slot(state: StateContract) -> tuple[str, str]:
    """Return where Flink keeps a state, and its name there."""
    if state.kind in _LISTS:
        return "list", state.name
    if state.kind in (_BROADCAST, COORDINATOR, UNREADABLE):
        return state.kind, state.name
    return "keyed", state.name


def _without_ttl(value: Any, kind: str) -> tuple[Any, bool]:
    """Return a state's type without the times of its TTL, and whether it has them.

    A list has them in its elements, and a map in its values.
    """
    if isinstance(value, str) or not value.get("nested"):
        return value, False
    if value["serializer"] == _TTL:
        return value["nested"][0], True
    if kind not in ("list", "map", _ANY_KIND):
        return value, False
    *others, last = value["nested"]
    if isinstance(last, str) or last["serializer"] != _TTL:
        return value, False
    return {**value, "nested": [*others, last["nested"][0]]}, True


def _coordinator(old: StateContract, new: StateContract) -> Fit:
    if old.form == new.form:
        return AS_IS
    return fit_of(
        Level.UNKNOWN, "the coordinator's state has another version: only the source can read it"
    )


def _unknown(
    operator: OperatorContract, state: StateContract, side: str, unread: StateContract
) -> Finding:
    reason = f"the {side} state cannot be read: {unread.form['problem']}"
    return _finding(operator, state, Verdict.UNKNOWN, reason)


def _major(job: JobContract) -> int | None:
    """Return the major version of Flink, None if it is not known."""
    major = job.version.partition(".")[0]
    return int(major) if major.isdecimal() else None
