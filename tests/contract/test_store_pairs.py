"""Verdicts about the states of a store, compared with what the store does at the next checkpoint.

A verdict fits if and only if a job that declares the new state can write the next checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.contract import compare
from statestore.contract.lock import lock_text, parse_lock
from statestore.contract.model import Verdict
from statestore.contract.store_side import contract_of_checkpoint, contract_of_declared
from statestore.errors import StateStoreError
from statestore.format.state import TimeToLive

LONG, INT, TEXT, TIME = pa.int64(), pa.int32(), pa.string(), pa.timestamp("us", "UTC")
COLUMNS = {"user": TEXT, "shop": INT, "total": INT, "seen": LONG}
KEY = {"key": "user"}
LIST = {"key": "user", "kind": "list", "entry": "shop"}
TTL = {"ttl": TimeToLive("7d", "seen")}
STRUCT = pa.struct([("a", INT)])
UNFIT, SAME, CONVERTS, LOST, EMPTY = (
    *(Verdict.UNFIT, Verdict.SAME, Verdict.CONVERTS, Verdict.LOST, Verdict.EMPTY),
)


@dataclass(frozen=True)
class State:
    """A state that a job declares."""

    columns: Mapping[str, pa.DataType] = field(default_factory=lambda: COLUMNS)
    options: Mapping[str, Any] = field(default_factory=lambda: KEY)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.columns.items()))


def without(*names: str, **added: pa.DataType) -> dict[str, pa.DataType]:
    """Return the columns without some, and with others or other types."""
    kept = {name: data_type for name, data_type in COLUMNS.items() if name not in names}
    return {**kept, **added}


PAIRS: dict[str, tuple[State, State, Verdict]] = {
    "same": (State(), State(), SAME),
    "reordered": (State(), State(dict(reversed(COLUMNS.items()))), SAME),
    "new column": (State(without("total")), State(), CONVERTS),
    "missing column": (State(), State(without("total")), LOST),
    "wider": (State(), State(without(total=LONG)), CONVERTS),
    "narrower": (State(without(total=LONG)), State(), UNFIT),
    "other type": (State(), State(without(total=TEXT)), UNFIT),
    "missing and new": (State(), State(without("total", sum=INT)), UNFIT),
    "renamed": (
        State(),
        State(without("total", sum=INT), {**KEY, "renamed": {"total": "sum"}}),
        CONVERTS,
    ),
    "dropped": (State(), State(without("total", sum=INT), {**KEY, "dropped": ["total"]}), CONVERTS),
    "renamed to nothing": (State(), State(COLUMNS, {**KEY, "renamed": {"total": "sum"}}), UNFIT),
    "dropped but there": (State(), State(COLUMNS, {**KEY, "dropped": ["total"]}), UNFIT),
    "struct field added": (
        State(without(total=STRUCT)),
        State(without(total=pa.struct([("a", INT), ("b", INT)]))),
        CONVERTS,
    ),
    "struct field gone": (
        State(without(total=pa.struct([("a", INT), ("b", INT)]))),
        State(without(total=STRUCT)),
        UNFIT,
    ),
    "list widened": (
        State(without(total=pa.list_(INT))),
        State(without(total=pa.list_(LONG))),
        CONVERTS,
    ),
    "map key widened": (
        State(without(total=pa.map_(INT, INT))),
        State(without(total=pa.map_(LONG, INT))),
        UNFIT,
    ),
    "key added": (State(), State(COLUMNS, {"key": ["user", "shop"]}), UNFIT),
    "key reordered": (
        State(COLUMNS, {"key": ["user", "shop"]}),
        State(COLUMNS, {"key": ["shop", "user"]}),
        UNFIT,
    ),
    "key widened": (
        State(COLUMNS, {"key": "shop"}),
        State(without(shop=LONG), {"key": "shop"}),
        UNFIT,
    ),
    "key missing": (State(), State(without("shop", "user", shop=INT), {"key": "shop"}), UNFIT),
    "no key": (State(), State(COLUMNS, {}), SAME),
    "namespace": (State(), State(COLUMNS, {**KEY, "namespace": "shop"}), UNFIT),
    "kind": (State(), State(COLUMNS, LIST), UNFIT),
    "kind back": (State(COLUMNS, LIST), State(), UNFIT),
    "kind without key": (State(COLUMNS, LIST), State(COLUMNS, {}), SAME),
    "other entry": (State(COLUMNS, LIST), State(COLUMNS, {**LIST, "entry": "total"}), UNFIT),
    "hash scheme": (State(), State(COLUMNS, {**KEY, "hash_scheme": "flink-sql"}), UNFIT),
    "max parallelism": (State(), State(COLUMNS, {**KEY, "max_parallelism": 256}), UNFIT),
    "same max parallelism": (State(), State(COLUMNS, {**KEY, "max_parallelism": 128}), SAME),
    "regrouped": (State(), State(COLUMNS, {**KEY, "max_parallelism": 256, "regroup": True}), SAME),
    "TTL on": (State(), State(COLUMNS, {**KEY, **TTL}), CONVERTS),
    "TTL off": (State(COLUMNS, {**KEY, **TTL}), State(COLUMNS, {**KEY, "ttl": "off"}), CONVERTS),
    "TTL longer": (
        State(COLUMNS, {**KEY, **TTL}),
        State(COLUMNS, {**KEY, "ttl": TimeToLive("9d", "seen")}),
        SAME,
    ),
    "TTL kept": (State(COLUMNS, {**KEY, **TTL}), State(), SAME),
    "TTL of a column that is gone": (State(COLUMNS, {**KEY, **TTL}), State(without("seen")), UNFIT),
    "TTL column of another type": (
        State(without(seen=INT)),
        State(without(seen=INT), {**KEY, **TTL}),
        UNFIT,
    ),
    "timers": (
        State(
            without(seen=LONG),
            {"key": "user", "kind": "timers", "entry": "seen", "time_domain": "event"},
        ),
        State(
            without(seen=LONG),
            {"key": "user", "kind": "timers", "entry": "seen", "time_domain": "processing"},
        ),
        UNFIT,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_verdict_is_what_the_store_does(name: str, tmp_path: Path) -> None:
    old, new, verdict = PAIRS[name]
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("totals", "by-user", old.schema.empty_table(), **old.options)
    contract = contract_of_checkpoint(checkpoint.manifest)

    def declare(checkpoint: Any) -> None:
        checkpoint.declare_keyed("totals", "by-user", new.schema, **new.options)

    declared = contract_of_declared(declare, "job.py:declare")
    (finding,) = compare(contract, declared)
    assert (
        compare(parse_lock(lock_text(contract), "state.lock"), declared)[0].reason == finding.reason
    )
    assert finding.verdict is verdict, finding.reason
    expected = pytest.raises(StateStoreError) if verdict is UNFIT else nullcontext()
    with expected, store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("totals", "by-user", new.schema.empty_table(), **new.options)


def test_states_without_a_partner_are_lost_or_begin_empty(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        rows = [{"user": "a", "n": 1}, {"user": "b", "n": 2}]
        checkpoint.write_keyed("totals", "by-user", rows, key="user")
        checkpoint.write_broadcast("totals", "rules", [{"limit": 3}])

    def declare(checkpoint: Any) -> None:
        checkpoint.declare_keyed("totals", "by-shop", State().schema, key="shop")
        checkpoint.write_broadcast("totals", "rules")

    declared = contract_of_declared(declare, "job.py:declare")
    findings = compare(contract_of_checkpoint(checkpoint.manifest), declared)
    assert [(finding.name, finding.verdict, finding.rows) for finding in findings] == [
        ("totals/by-user", LOST, 2),
        ("totals/rules", SAME, 1),
        ("totals/by-shop", EMPTY, None),
    ]
