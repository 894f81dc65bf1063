"""The job graph in a checkpoint: it identifies the operators and assigns stored state to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import (
    InvalidArgumentError,
    ParallelismError,
    SchemaMismatchError,
    StateNotFoundError,
    UnclaimedStateError,
)
from statestore.jobgraph.graph import JobGraph, Node
from statestore.jobgraph.operators import operator_id, operator_ids
from statestore.spark.data_source import resolve

ROWS = [{"user": f"u{i}", "n": i} for i in range(50)]

JOB = """
[[operator]]
name = "orders"
uid = "source"
parallelism = 2

[[operator]]
name = "clean"
parallelism = 2
inputs = ["orders"]

[[operator]]
name = "totals"
uid = "totals"
parallelism = 4
max_parallelism = 8
inputs = [{ from = "clean", partitioner = "hash" }]
"""


def job(text: str = JOB, **changes: Any) -> JobGraph:
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, str(new))
    return JobGraph.from_toml(text)


def take(store: StateStore, graph: JobGraph) -> None:
    with store.snapshot(graph=graph) as checkpoint:
        checkpoint.write_keyed("totals", "sums", ROWS, key="user")
        checkpoint.write_union("source", "offsets", [[{"p": 0, "o": 5}], [{"p": 1, "o": 6}]])
        checkpoint.write_split("clean", "pending", [[{"x": 1}, {"x": 2}], [{"x": 3}]])


def test_a_checkpoint_keeps_the_graph_of_its_job(store: StateStore) -> None:
    graph = job()
    take(store, graph)
    manifest = store.checkpoint().manifest
    assert manifest.graph == graph
    assert manifest.parallelism == 4
    ids = operator_ids(graph)
    known = manifest.operators
    assert known.id_of("totals") == ids["totals"] == operator_id("totals")
    assert known.id_of("clean") == ids["clean"] != operator_id("clean")
    assert [known.parallelism_of(uid) for uid in ("source", "clean", "totals")] == [2, 2, 4]
    assert manifest.keyed_entry("totals", "sums").state.max_parallelism == 8


def test_without_a_graph_each_operator_is_unchanged(store: StateStore) -> None:
    take(store, job())
    restored = store.restore()
    assert restored.parallelism_of("source") == 2
    assert restored.parallelism_of("totals") == 4
    assert restored.operator_state("clean", "pending").subtask(1) == [{"x": 3}]
    at_seven = store.restore(parallelism=7)
    assert len(at_seven.plan.operators[0].subtasks) == 7


def test_the_new_job_finds_its_state_by_operator_id(store: StateStore) -> None:
    """I7: each operator at its own parallelism; names do not matter, uids do."""
    take(store, job())
    renamed = job(
        JOB.replace('name = "totals"', 'name = "sums per user"'), **{"lelism = 4": "lelism = 7"}
    )
    restored = store.restore(graph=renamed)
    totals = restored.keyed("totals", "sums")
    rows = [row for i in range(7) for row in totals.to_arrow(i).to_pylist()]
    assert sorted(row["n"] for row in rows) == list(range(50))
    assert restored.operator_state("source", "offsets").subtask(1) == [
        {"p": 0, "o": 5},
        {"p": 1, "o": 6},
    ]
    assert restored.operator_state("clean", "pending").subtask(0) == [{"x": 1}, {"x": 2}]
    assert restored.matching is not None
    assert {node.outcome for node in restored.matching.nodes} == {"found"}


GONE = JOB.replace('uid = "totals"\n', 'uid = "sums"\n')


def test_unclaimed_state_is_refused(store: StateStore, tmp_path: Path) -> None:
    take(store, job())
    with pytest.raises(UnclaimedStateError) as caught:
        store.restore(graph=job(GONE))
    message = str(caught.value)
    assert "stored operator 'totals' with 50 rows" in message
    assert "set uid = 'totals' on operator 'totals' to keep" in message
    assert "--allow-non-restored-state" in message
    plan = store.plan(graph=job(GONE))
    assert plan.matching is not None
    assert [one.uid for one in plan.matching.dropped] == ["totals"]
    allowed = store.restore(graph=job(GONE), allow_non_restored_state=True)
    with pytest.raises(StateNotFoundError, match=r"operator 'sums' has no state .* starts empty"):
        allowed.keyed("sums", "sums")
    with pytest.raises(StateNotFoundError, match="the job graph has no operator 'totals'"):
        allowed.keyed("totals", "sums")
    out = tmp_path / "out"
    done = store.restore(graph=job(GONE), allow_non_restored_state=True).export(out)
    assert {state.operator for state in done.states} == {"clean", "source"}


def test_a_generated_id_depends_on_the_position_unless_its_hash_is_set(store: StateStore) -> None:
    """The hint is Flink's setUidHash, and it works."""
    take(store, job())
    moved = "[[operator]]\nname = 'other'\n" + JOB
    plan = store.plan(graph=job(moved))
    assert plan.matching is not None
    (hint,) = plan.matching.hints
    assert (hint.node, hint.uid_hash) == ("clean", operator_ids(job())["clean"])
    with pytest.raises(UnclaimedStateError, match="uid_hash = "):
        store.restore(graph=job(moved))
    kept = moved.replace('name = "clean"', f'name = "clean"\nuid_hash = "{hint.uid_hash}"')
    restored = store.restore(graph=job(kept))
    assert restored.operator_state("clean", "pending").subtask(1) == [{"x": 3}]


def test_state_is_written_only_for_operators_of_the_graph(store: StateStore) -> None:
    with (
        pytest.raises(InvalidArgumentError, match="has no operator 'total': did you mean 'totals'"),
        store.snapshot(graph=job()) as checkpoint,
    ):
        checkpoint.write_keyed("total", "sums", ROWS, key="user")
    assert store.checkpoints() == ()


def test_a_name_that_is_another_operators_uid_is_refused(store: StateStore) -> None:
    clash = JOB.replace('name = "clean"', 'name = "source"').replace('["orders"]', '["orders"]')
    clash = clash.replace('from = "clean"', 'from = "source"')
    with pytest.raises(InvalidArgumentError, match="would keep their state in the same place"):
        store.snapshot(graph=job(clash))


def test_a_max_parallelism_that_contradicts_the_graph_is_refused(store: StateStore) -> None:
    with (
        pytest.raises(ParallelismError, match="has max parallelism 8 in the job graph"),
        store.snapshot(graph=job()) as checkpoint,
    ):
        checkpoint.write_keyed("totals", "sums", ROWS, key="user", max_parallelism=16)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"lelism = 4": "lelism = 9", "max_parallelism = 8\n": ""}, "parallelism 9 is above the s"),
        ({"max_parallelism = 8": "max_parallelism = 16"}, "8 .* 16 is configured"),
    ],
)
def test_a_graph_that_does_not_fit_names_the_operator(
    store: StateStore, new: dict[str, str], message: str
) -> None:
    take(store, job())
    with pytest.raises(ParallelismError, match=f"operator 'totals': .*{message}"):
        store.restore(graph=job(**new))


@pytest.mark.parametrize(
    "given",
    [
        {"graph": job(), "parallelism": 4},
        {"graph": job(), "max_parallelism": 8},
        {"bytes_per_task": 100},
        {"bytes_per_task": 100, "parallelism": 4},
        {"parallelism": "many"},
        {"allow_non_restored_state": True},
        {"parallelism": "auto", "bytes_per_task": 0},
        {"parallelism": "auto", "bytes_per_task": -1},
    ],
)
def test_invalid_combinations_are_refused(store: StateStore, given: dict[str, Any]) -> None:
    take(store, job())
    with pytest.raises(InvalidArgumentError):
        store.restore(**given)


def test_a_retry_with_the_same_id_keeps_the_graph(store: StateStore) -> None:
    for _ in range(2):
        with store.snapshot(graph=job(), checkpoint_id=3) as checkpoint:
            checkpoint.write_split("clean", "pending", [[{"x": 1}], []])
    assert checkpoint.already_committed
    assert checkpoint.manifest.graph == job()


SWAPPED = """
[[operator]]
name = "a"
uid = "a"
uid_hash = "{b}"

[[operator]]
name = "b"
uid = "b"
uid_hash = "{a}"
parallelism = 3

[[operator]]
name = "c"
uid = "new"
uid_hash = "{c}"
"""


def test_states_are_written_and_planned_under_the_new_names(
    store: StateStore, tmp_path: Path
) -> None:
    """Two operators have been swapped, and one has a new uid."""
    with store.snapshot(parallelism=2) as checkpoint:
        for number, uid in enumerate(("a", "b", "c", "d"), start=1):
            checkpoint.write_keyed(uid, "s", ROWS[: 10 * number], key="user", max_parallelism=4)
    ids = {uid: operator_id(uid) for uid in ("a", "b", "c")}
    graph = JobGraph.from_toml(SWAPPED.format(**ids))
    given: dict[str, Any] = {"graph": graph, "allow_non_restored_state": True}
    found = store.restore(**given)
    counts = {uid: found.keyed(uid, "s").entry.rows for uid in ("a", "b", "new")}
    assert counts == {"a": 20, "b": 10, "new": 30}
    done = store.restore(**given).export(tmp_path / "out")
    assert {state.operator: state.rows for state in done.states} == counts
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(counts)
    assert len(list((tmp_path / "out" / "b" / "s").iterdir())) == 3
    one = store.restore(**given).export(tmp_path / "one", operator="new", state="s")
    assert [(state.operator, state.rows) for state in one.states] == [("new", 30)]
    plan = store.plan(graph=graph)
    rows = {of.operator: sum(s.rows for s in of.subtasks) for of in plan.operators}
    assert rows == counts
    assert [of.operator for of in store.plan(graph=graph, operator="new").operators] == ["new"]
    for gone in ("c", "d"):
        with pytest.raises(StateNotFoundError, match=f"the job graph has no operator '{gone}'"):
            store.restore(**given).export(tmp_path / "none", operator=gone)
        with pytest.raises(StateNotFoundError):
            store.plan(graph=graph, operator=gone)


def test_an_operator_keeps_its_state_through_a_change_of_uid(store: StateStore) -> None:
    """I3: it keeps the max parallelism and the key type that were stored under the old uid."""
    old = JobGraph.from_toml("[[operator]]\nname = 'tot'")
    with store.snapshot(graph=old) as checkpoint:
        checkpoint.write_keyed("tot", "s", ROWS, key="n", max_parallelism=64)
    known = operator_ids(old)["tot"]
    new = JobGraph.from_toml(f"[[operator]]\nname = 'tot'\nuid = 'totals'\nuid_hash = '{known}'")
    with store.snapshot(graph=new) as checkpoint:
        entry = checkpoint.write_keyed("totals", "s", ROWS, key="n")
    assert (entry.state.uid, entry.state.max_parallelism) == ("totals", 64)
    restored = store.restore(graph=new).keyed("totals", "s")
    assert restored.to_arrow(0).num_rows == len(ROWS)
    texts = [{"n": str(row["n"]), "user": row["user"]} for row in ROWS]
    with pytest.raises(SchemaMismatchError), store.snapshot(graph=new) as checkpoint:
        checkpoint.write_keyed("totals", "s", texts, key="n")


def test_another_operator_with_the_same_name_is_different(store: StateStore) -> None:
    old = JobGraph.from_toml("[[operator]]\nname = 'x'")
    with store.snapshot(graph=old) as checkpoint:
        checkpoint.write_keyed("x", "s", ROWS, key="n", max_parallelism=4)
    other = JobGraph.from_toml("[[operator]]\nname = 'other'\nuid = 'x'\nparallelism = 8")
    with store.snapshot(graph=other) as checkpoint:
        entry = checkpoint.write_keyed("x", "s", ROWS, key="n")
        checkpoint.drop("x", "s")  # the operator that had the name
    assert entry.state.max_parallelism == 128


def test_the_data_source_reads_an_operator_under_its_stored_name(store: StateStore) -> None:
    take(store, job())
    options = {"store": store.url, "operator": "totals", "state": "sums"}
    assert len(resolve(options).per_subtask) == 4
    wide = job(**{"lelism = 4": "lelism = 2", "max_parallelism = 8": "max_parallelism = 2"})
    other = StateStore.open(f"{store.url}-other", table_format="parquet")
    with other.snapshot(graph=wide, parallelism=7) as checkpoint:
        checkpoint.write_keyed("totals", "sums", ROWS, key="user")
    assert len(resolve(options | {"store": other.url}).per_subtask) == 2


@pytest.mark.parametrize("graph", ["x", {}, 7])
def test_an_invalid_graph_is_refused(store: StateStore, graph: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="graph must be of type JobGraph"):
        store.snapshot(graph=graph)
    take(store, job())
    with pytest.raises(InvalidArgumentError, match="graph must be of type JobGraph"):
        store.restore(graph=graph)


def test_a_name_that_cannot_be_stored_is_refused_early(store: StateStore) -> None:
    with pytest.raises(InvalidArgumentError):
        store.snapshot(graph=JobGraph((Node("\ud800"),)))
    assert not Path(store.url, "operators").exists()


def test_an_unknown_operator_has_no_parallelism(store: StateStore) -> None:
    take(store, job())
    with pytest.raises(StateNotFoundError, match="no operator 'nope'"):
        store.restore().parallelism_of("nope")
