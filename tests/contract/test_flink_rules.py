"""The verdicts about a job of Flink that no pair of real versions has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statestore.contract import compare
from statestore.contract.flink_rules import (
    BACKEND,
    DERIVED,
    MAX_PARALLELISM,
    PLANNED,
    UNREADABLE,
)
from statestore.contract.model import JobContract, OperatorContract, StateContract, Verdict


def states(*names: str, problem: str | None = None) -> JobContract:
    """Return a contract with one operator of some states of longs."""
    form = {"key": "Long", "namespace": "VoidNamespace", "value": "Long"}
    known = [StateContract(name=name, kind="value", form=form, rows=3) for name in names]
    if problem is not None:
        known.append(StateContract(name=UNREADABLE, kind=UNREADABLE, form={"problem": problem}))
    operator = OperatorContract(id="0" * 32, name="", kind="operator", uid="op", states=(*known,))
    return JobContract(engine="flink", version="2", operators=(operator,))


def test_a_finding_has_the_figures_of_the_old_state() -> None:
    (finding,) = compare(states("a"), states("a"))
    assert (finding.name, finding.verdict, finding.rows) == ("op/a", Verdict.SAME, 3)
    lost, empty = compare(states("a"), states("b"))
    assert (lost.verdict, lost.rows) == (Verdict.LOST, 3)
    assert (empty.verdict, empty.rows) == (Verdict.EMPTY, None)


def test_a_verdict_names_the_command_that_mends_it() -> None:
    old, new = states("a"), states("b")
    (operator,) = new.operators
    planned = replace(new, operators=(replace(operator, kind=PLANNED),))
    lost, empty = compare(old, planned)
    assert lost.remedy == "statestore flink export NEW --leave-out op/a --store STORE"
    assert empty.remedy == (
        "statestore bootstrap TABLE --flink-plan JOB.json --state op/b --store STORE"
    )
    gone, _ = compare(old, replace(new, operators=(replace(operator, id="1" * 32),)))
    assert gone.remedy == "statestore flink export NEW --leave-out op --store STORE"
    (state,) = operator.states
    text = replace(state, form={**state.form, "value": "String"})
    (unfit,) = compare(new, replace(new, operators=(replace(operator, states=(text,)),)))
    assert (unfit.verdict, unfit.remedy) == (
        *(Verdict.UNFIT, "statestore bootstrap TABLE --state op/b --store NEW_STORE"),
    )


def test_what_cannot_be_read_is_unknown() -> None:
    (old,) = compare(states(problem="no"), states("a"))
    assert (old.state, old.verdict) == (None, Verdict.UNKNOWN)
    assert old.reason == "the old state cannot be read: no"
    (new,) = compare(states("a"), states(problem="no"))
    assert (new.state, new.verdict) == ("a", Verdict.UNKNOWN)


def test_the_max_parallelism_of_one_operator() -> None:
    old = replace(states("a"), settings={MAX_PARALLELISM: "128"})
    other = f"{MAX_PARALLELISM} of {'0' * 32}"
    job, _ = compare(old, replace(old, settings={MAX_PARALLELISM: "128", other: "300"}))
    assert (job.operator, job.state, job.verdict) == (None, None, Verdict.UNFIT)
    assert job.remedy == "statestore flink repack SAVEPOINT NEW --max-parallelism 300"
    derived, _ = compare(old, replace(old, settings={MAX_PARALLELISM: f"256{DERIVED}"}))
    assert derived.verdict == Verdict.UNKNOWN


def map_of(key: str, constants: list[str], backend: str | None, *, ttl: bool) -> JobContract:
    enum = {"serializer": "EnumSerializer", "class": key, "constants": constants}
    value = {"serializer": "TtlSerializer", "nested": ["Long"]} if ttl else "Long"
    form = {
        "key": "Long",
        "namespace": "VoidNamespace",
        "value": {"serializer": "MapSerializer", "nested": [enum, value]},
    }
    contract = states("a")
    (operator,) = contract.operators
    state = StateContract(name="a", kind="map", form=form)
    known = {} if backend is None else {BACKEND: backend}
    return replace(contract, operators=(replace(operator, states=(state,)),), settings=known)


@pytest.mark.parametrize(
    ("backend", "verdict"),
    [(None, Verdict.UNKNOWN), ("hashmap", Verdict.CONVERTS), ("rocksdb", Verdict.UNFIT)],
)
def test_the_backend_decides_whether_map_keys_can_migrate(
    backend: str | None, verdict: Verdict
) -> None:
    old = map_of("E", ["A", "B"], None, ttl=False)
    (finding,) = compare(old, map_of("E", ["B", "A"], backend, ttl=True))
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("2", Verdict.CONVERTS), ("1", Verdict.UNFIT), ("", Verdict.UNKNOWN)],
)
def test_the_version_decides_about_a_ttl(version: str, verdict: Verdict) -> None:
    old = replace(map_of("E", ["A"], "hashmap", ttl=False), version="1")
    (finding,) = compare(old, replace(map_of("E", ["A"], "hashmap", ttl=True), version=version))
    assert finding.verdict == verdict
