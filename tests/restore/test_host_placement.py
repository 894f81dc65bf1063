"""Host placement of a restore: subtasks run where the copies of their state are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Manifest
from statestore.jobgraph.graph import ChainingStrategy, Edge, EdgePartitioner, JobGraph, Node
from statestore.jobgraph.operators import job_vertices, operator_ids
from statestore.keys.groups import RangeAssignment
from statestore.restore.placement import STRATEGIES, OperatorPlacement, place_operators
from statestore.restore.plan import plan_restore
from statestore.restore.target import RestoreTarget, plan_target
from tests.restore.test_plan import handle, keyed
from tests.restore.test_plan import manifest as manifest_of

HOSTS = {"a": 2, "b": 2}


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """8 key groups; host b has copies of the first half, host a of the second half."""
    store = StateStore.open(str(tmp_path), table_format="parquet", layout="partitioned")
    rows = [{"user": f"u{i}", "n": i} for i in range(400)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("users", "totals", rows, key="user", max_parallelism=8)
        checkpoint.write_union("source", "offsets", [[{"p": 0}], [{"p": 1}]])
    stored = store.checkpoint().manifest
    (entry,) = stored.keyed
    handles = tuple(
        replace(handle, host="b" if handle.key_groups.first < 4 else "a")
        for handle in entry.handles
    )
    return replace(stored, keyed=(replace(entry, handles=handles),))


def place(manifest: Manifest, parallelism: int, **options: Any) -> OperatorPlacement:
    (plan,) = (p for p in plan_restore(manifest, parallelism).operators if p.operator == "users")
    (placed,) = place_operators(manifest, [plan], **({"hosts": HOSTS} | options))
    return placed


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("parallelism", [2, 4])
def test_every_subtask_runs_where_its_state_is(
    manifest: Manifest, parallelism: int, strategy: str
) -> None:
    """With enough slots, all bytes stay local with every strategy."""
    placed = place(manifest, parallelism, strategy=strategy)
    half = parallelism // 2
    assert [subtask.host for subtask in placed.subtasks] == ["b"] * half + ["a"] * half
    assert placed.local_bytes == manifest.keyed[0].size_bytes
    assert [subtask.subtask for subtask in placed.subtasks] == list(range(parallelism))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_host_gets_more_than_its_slots(manifest: Manifest, strategy: str) -> None:
    placed = place(manifest, 3, hosts={"a": 1, "b": 1, "c": 1}, strategy=strategy)
    assert sorted(subtask.host for subtask in placed.subtasks) == ["a", "b", "c"]
    assert 0 < placed.local_bytes < manifest.keyed[0].size_bytes


def test_a_subtask_leaves_the_slot_to_the_one_with_local_state(manifest: Manifest) -> None:
    """The strategy reserves slots that others need; otherwise the first subtask takes one."""
    hosts = {"a": 1, "c": 1}  # b, which has the state of subtask 0, is lost
    kept = place(manifest, 2, hosts=hosts, strategy="previous-default")
    assert [subtask.host for subtask in kept.subtasks] == ["c", "a"]
    taken = place(manifest, 2, hosts=hosts, strategy="default")
    assert [subtask.host for subtask in taken.subtasks] == ["a", "c"]
    assert kept.local_bytes > taken.local_bytes == 0


def test_evenly_spreads_subtasks_without_a_preference(manifest: Manifest) -> None:
    bare = replace(
        manifest,
        keyed=tuple(
            replace(e, handles=tuple(replace(h, host="") for h in e.handles))
            for e in manifest.keyed
        ),
    )
    assert [subtask.host for subtask in place(bare, 4, strategy="evenly").subtasks] == [
        "a",
        "b",
    ] * 2
    assert [subtask.host for subtask in place(bare, 4, strategy="default").subtasks] == [*"aabb"]
    assert [subtask.host for subtask in place(bare, 4).subtasks] == [*"aabb"]


def test_an_operator_without_keyed_state_takes_slots_in_order(manifest: Manifest) -> None:
    (plan,) = (p for p in plan_restore(manifest, 3).operators if p.operator == "source")
    (placed,) = place_operators(manifest, [plan], HOSTS)
    assert [subtask.host for subtask in placed.subtasks] == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": {"a": 1}}, "3 slots are needed and 1 are free"),
        ({"hosts": {"a": 0, "b": 9}}, "host 'a' offers 0 slots"),
        ({"strategy": "random"}, "unknown strategy 'random'; the strategies are locality, default"),
    ],
)
def test_invalid_arguments_are_refused(
    manifest: Manifest, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        place(manifest, 3, **options)


# --- Slot sharing ---------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Manifest, JobGraph]:
    """A job of some operators, each with copies of its state on random hosts."""
    count = draw(st.integers(1, 5))
    nodes, edges, entries = [], [], []
    for number in range(count):
        name = f"op{number}"
        nodes.append(
            Node(
                name,
                uid=name,
                parallelism=draw(st.sampled_from([2, 2, 2, 3])),
                slot_group=draw(st.sampled_from(["default", "default", "default", "other"])),
                strategy=draw(st.sampled_from(list(ChainingStrategy))),
                source=number == 0,
            )
        )
        if number:
            source = draw(st.integers(max(0, number - 2), number - 1))
            partitioner = draw(st.sampled_from([EdgePartitioner.FORWARD, EdgePartitioner.HASH]))
            if nodes[source].parallelism != nodes[number].parallelism:
                partitioner = EdgePartitioner.HASH
            edges.append(Edge(f"op{source}", name, partitioner=partitioner))
        if draw(st.booleans()):
            hosts = draw(st.lists(st.sampled_from(["", *"abc"]), min_size=8, max_size=8))
            sizes = draw(st.lists(st.integers(0, 10), min_size=8, max_size=8))
            handles = tuple(
                replace(handle(group, rows), host=host)
                for group, (host, rows) in enumerate(zip(hosts, sizes, strict=True))
            )
            entries.append(keyed(handles, uid=name))
    graph = JobGraph(nodes=tuple(nodes), edges=tuple(edges))
    return replace(manifest_of(*entries), graph=graph), graph


@given(jobs(), st.sampled_from(STRATEGIES), st.integers(0, 4))
def test_chained_operators_stay_together(
    job: tuple[Manifest, JobGraph], strategy: str, spare: int
) -> None:
    """Subtask i of all operators in a slot sharing group is on one host, within its slots."""
    manifest, graph = job
    groups = {node.slot_group for node in graph.nodes}
    needed = sum(max(n.parallelism for n in graph.nodes if n.slot_group == g) for g in groups)
    hosts = {"a": 1 + spare, "b": 1, "c": max(needed - 2, 1)}
    plan = plan_target(manifest, RestoreTarget(graph=graph))
    placed = {
        operator.operator: operator
        for operator in place_operators(manifest, plan.operators, hosts, strategy, graph=graph)
    }
    slots: dict[tuple[str, int], str] = {}
    for one in placed.values():
        assert one.slot_group == graph.node(one.operator).slot_group
        for subtask in one.subtasks:
            here = slots.setdefault((one.slot_group, subtask.subtask), subtask.host)
            assert here == subtask.host
    used = Counter(slots.values())
    assert all(used[host] <= count for host, count in hosts.items())
    for vertex in job_vertices(graph, operator_ids(graph)):
        chained = [placed[name] for name in vertex.in_order if name in placed]
        on = [[subtask.host for subtask in one.subtasks] for one in chained]
        assert all(hosts_of == on[0] for hosts_of in on)
    with pytest.raises(InvalidArgumentError, match=f"{needed} slots are needed and 0 are free"):
        place_operators(manifest, plan.operators, {}, strategy, graph=graph)


def test_a_chain_runs_where_most_bytes_of_all_its_operators_are() -> None:
    """Placed separately, op0 would run on a and op1 on b. Both run where 900 of 1,300 bytes are."""
    graph = JobGraph(
        nodes=(Node("op0", uid="op0", source=True), Node("op1", uid="op1")),
        edges=(Edge("op0", "op1"),),
    )
    small, large = replace(handle(0, 4), host="a"), replace(handle(0, 9), host="b")
    found = manifest_of(keyed((small,), uid="op0"), keyed((large,), uid="op1"), parallelism=1)
    plan = plan_target(found, RestoreTarget(graph=graph))
    hosts = {"a": 1, "b": 1}
    placed = place_operators(found, plan.operators, hosts, graph=graph)
    assert [(one.subtasks[0].host, one.local_bytes) for one in placed] == [("b", 0), ("b", 900)]


def test_a_wide_operator_without_state_gets_its_slots() -> None:
    graph = JobGraph(nodes=(Node("wide", uid="wide", parallelism=4), Node("u", uid="u")), edges=())
    found = manifest_of(keyed((handle(0),)), parallelism=1)
    plan = plan_target(found, RestoreTarget(graph=graph))
    with pytest.raises(InvalidArgumentError, match="4 slots are needed and 3 are free"):
        place_operators(found, plan.operators, {"a": 3}, graph=graph)


def test_placement_uses_the_uneven_ranges_of_the_plan() -> None:
    """Subtask 1 owns key groups 1 to 7, and all of them except the first are on b."""
    handles = tuple(replace(handle(i), host="a" if i == 0 else "b") for i in range(8))
    found = replace(manifest_of(keyed(handles)), ranges={"u": RangeAssignment((1, 8))})
    plan = plan_target(found, RestoreTarget())
    for strategy in STRATEGIES:
        (placed,) = place_operators(found, plan.operators, {"b": 1, "a": 1}, strategy)
        assert [(subtask.host, subtask.local_bytes) for subtask in placed.subtasks] == [
            ("a", 100),
            ("b", 700),
        ]
