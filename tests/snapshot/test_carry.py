"""No state is dropped silently: each is written, carried or dropped by name."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import CheckpointWriter, StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    LeftOutStateError,
    MissingFileError,
    ParallelismError,
    StateNotFoundError,
)
from statestore.format.left_out import LeftOutState
from statestore.jobgraph import JobGraph
from statestore.jobgraph.operators import operator_id
from statestore.maintenance.retention import tombstone
from statestore.storage import LocalStorage
from tests.support.examples import examples
from tests.support.stores import opened

GROUPS = 4
STATES = [(uid, name) for uid in ("a", "b") for name in ("k1", "k2", "split", "union", "same")]


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """Checkpoint 1 has states ``k1`` and ``union`` of operator ``a``, at parallelism 2."""
    store = opened(tmp_path / "store")
    with store.snapshot(parallelism=2) as checkpoint:
        write(checkpoint, ("a", "k1"), 1, 2)
        write(checkpoint, ("a", "union"), 1, 2)
    return store


def write(checkpoint: CheckpointWriter, state: tuple[str, str], n: int, parallelism: int) -> None:
    uid, name = state
    if name.startswith("k"):
        rows = [{"k": f"key {i}", "n": n} for i in range(6)]
        checkpoint.write_keyed(uid, name, rows, key="k", max_parallelism=GROUPS)
    elif name == "same":
        checkpoint.write_broadcast(uid, name, [{"n": n}])
    else:
        lists = [[{"n": n, "i": i}] for i in range(parallelism)]
        getattr(checkpoint, f"write_{name}")(uid, name, lists)


def content(store: StateStore, checkpoint: int | str = "latest") -> dict[tuple[str, str], Any]:
    """Return the contents of each state, which do not depend on the parallelism."""
    found: dict[tuple[str, str], Any] = {}
    restored = store.restore(checkpoint=checkpoint)
    for entry in restored.manifest.entries:
        uid, name = entry.state.uid, entry.state.name
        if name.startswith("k"):
            state = restored.keyed(uid, name)
            rows = [state.to_arrow(i) for i in range(restored.parallelism)]
            found[uid, name] = sorted((r["k"], r["n"]) for t in rows for r in t.to_pylist())
        else:
            lists = restored.operator_state(uid, name).per_old_subtask()
            found[uid, name] = sorted((e["n"], e.get("i")) for one in lists for e in one)
    return found


def names(checkpoint: CheckpointWriter) -> set[tuple[str, str]]:
    return {(e.state.uid, e.state.name) for e in checkpoint.manifest.entries}


@pytest.mark.slow
@examples(40)
@given(
    st.sets(st.sampled_from(STATES), min_size=1, max_size=6),
    st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from(STATES), st.sampled_from(["write", "carry", "drop"]), max_size=8
            ),
            st.booleans(),
            st.integers(1, GROUPS),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_a_checkpoint_has_its_written_and_carried_states_or_is_refused(
    first: set[tuple[str, str]],
    steps: list[tuple[dict[tuple[str, str], str], bool, int]],
) -> None:
    """Compared with a dictionary: at any parallelism, for any selection of states."""
    with tempfile.TemporaryDirectory() as folder:
        store = opened(folder)
        with store.snapshot(parallelism=2) as checkpoint:
            for state in sorted(first):
                write(checkpoint, state, 0, 2)
        expected = content(store)
        for number, (plan, rest, parallelism) in enumerate(steps, 1):
            done = {s: v for s, v in plan.items() if v == "write" or s in expected}
            lost = set() if rest else expected.keys() - done.keys()
            try:
                with store.snapshot(parallelism=parallelism) as checkpoint:
                    for state, verb in done.items():
                        if verb == "write":
                            write(checkpoint, state, number, parallelism)
                        else:
                            getattr(checkpoint, verb)(*state)
                    if rest:
                        checkpoint.carry_rest()
                    assert set(checkpoint.left_out()) == lost
            except LeftOutStateError:
                assert lost
                assert content(store) == expected
                assert not store.maintenance.verify().strays
                continue
            assert not lost
            gone = {state for state, verb in done.items() if verb == "drop"}
            written = {state for state, verb in done.items() if verb == "write"}
            now = content(store)
            assert now.keys() == (expected.keys() - gone) | written
            for state in now.keys() - written:
                assert now[state] == expected[state]
            expected = now
        assert not store.maintenance.verify("all", deep=True).broken


def test_the_error_names_the_state_and_both_solutions(store: StateStore) -> None:
    with (
        pytest.raises(LeftOutStateError) as caught,
        store.snapshot(parallelism=2) as checkpoint,
    ):
        write(checkpoint, ("a", "k2"), 1, 2)
    for part in (
        "state 'k1' of operator 'a'",
        "checkpoint.carry('a', 'k1')",
        "checkpoint.carry_rest()",
        "checkpoint.drop('a', 'k1')",
        "Left out as well: 'union' of 'a'",
    ):
        assert part in str(caught.value)
    assert caught.value.exit_code == 12
    assert store.checkpoints() == (1,)
    assert not store.maintenance.verify().strays  # its written files are deleted


def test_changes_of_one_state_do_not_drop_another(store: StateStore) -> None:
    with (
        pytest.raises(LeftOutStateError, match="state 'union' of operator 'a'"),
        store.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.write_changes("a", "k1", [{"k": "new", "n": 1}], key="k")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("a", "k1", [{"k": "new", "n": 1}], key="k")
        checkpoint.carry_rest()
    assert names(checkpoint) == {("a", "k1"), ("a", "union")}


def test_a_state_can_be_carried_from_an_older_checkpoint(store: StateStore) -> None:
    """For a job that restored the older one, or if the newest has dropped the state."""
    before = content(store)
    with store.snapshot(parallelism=2) as checkpoint:
        write(checkpoint, ("a", "k1"), 2, 2)
        checkpoint.drop("a", "union")
    with store.snapshot(parallelism=3) as checkpoint:
        entry = checkpoint.carry("a", "union", base=1)
        checkpoint.carry("a", "k1", base=1)
    assert entry.state.name == "union"
    assert content(store) == before
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.carry_rest(base=2)
        checkpoint.drop("a", "union")
    assert content(store) == content(store, 2)


def test_a_state_that_cannot_be_carried_is_named(store: StateStore, tmp_path: Path) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        with pytest.raises(StateNotFoundError, match="no state 'x' in operator 'a'"):
            checkpoint.carry("a", "x")
        with pytest.raises(CheckpointNotFoundError):
            checkpoint.carry("a", "k1", base=7)
        wrong: Any = 7
        for call in (checkpoint.carry, checkpoint.drop):
            with pytest.raises(InvalidArgumentError, match="operator must be of type str, not int"):
                call(wrong, "k1")
        checkpoint.carry("a", "k1")
        with pytest.raises(InvalidArgumentError, match="name it only once"):
            checkpoint.carry("a", "k1")
        checkpoint.drop("a", "union")
    with pytest.raises(InvalidArgumentError, match="outside of the 'with' block"):
        checkpoint.carry_rest()
    with pytest.raises(InvalidArgumentError, match="inside the 'with' block"):
        checkpoint.drop("a", "k1")
    with (
        pytest.raises(ParallelismError, match="5 is above the stored max parallelism 4"),
        store.snapshot(parallelism=5) as checkpoint,
    ):
        checkpoint.carry("a", "k1")
    with (
        pytest.raises(StateNotFoundError, match="no checkpoint yet"),
        opened(tmp_path / "empty").snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.carry("a", "k1")


def _drop_and_write(checkpoint: CheckpointWriter) -> None:
    checkpoint.drop("a", "k1")
    write(checkpoint, ("a", "k1"), 1, 2)
    checkpoint.carry_rest()


class Asked(LocalStorage):
    """Records the names of files whose size is requested."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.names: list[str] = []

    def size(self, name: str) -> int:
        self.names.append(name)
        return super().size(name)


def test_a_commit_checks_only_files_that_the_previous_checkpoint_does_not_reference(
    store: StateStore,
) -> None:
    """I5: as long as the previous checkpoint is visible, none of its files are collected."""
    storage = Asked(store.url)
    with StateStore.open(storage).snapshot(parallelism=2) as checkpoint:
        write(checkpoint, ("a", "union"), 2, 2)
        checkpoint.carry_rest()
    (new,) = store.checkpoint(2).manifest.operator
    assert storage.names == [f"{new.table.path}/{handle.path}" for handle in new.handles]


@pytest.mark.parametrize("is_there", [True, False], ids=["files are there", "files are gone"])
def test_carried_files_are_checked_after_the_previous_checkpoint_has_expired(
    store: StateStore, is_there: bool
) -> None:
    """I5: garbage collection may have deleted it."""
    storage = Asked(store.url)
    files = sorted(path for path in Path(store.url, "operators/a/keyed/k1").rglob("*.parquet"))
    checkpoint = StateStore.open(storage).snapshot(parallelism=2)

    def commit() -> None:
        with checkpoint:
            checkpoint.carry("a", "k1")
            checkpoint.drop("a", "union")
            store.parts.catalog().expire(1, tombstone(1, "0", 0))
            if not is_there:
                files[0].unlink()

    if is_there:
        commit()
        assert {name.rpartition("/")[2] for name in storage.names} >= {p.name for p in files}
        return
    with pytest.raises(MissingFileError, match=files[0].name):
        commit()
    assert store.checkpoints() == ()


def test_a_dropped_state_cannot_be_written_too(store: StateStore) -> None:
    with (
        pytest.raises(InvalidArgumentError, match="is both dropped and written in this checkpoint"),
        store.snapshot(parallelism=2) as checkpoint,
    ):
        _drop_and_write(checkpoint)


def test_with_a_graph_operators_are_matched_by_id(store: StateStore) -> None:
    """The state of an operator outside the graph cannot be kept; it must be dropped by name."""
    graph = JobGraph.from_toml("[[operator]]\nname = 'x'\nuid = 'b'\nparallelism = 2")
    with (
        pytest.raises(LeftOutStateError, match="add operator 'a' to the job graph again"),
        store.snapshot(graph=graph) as checkpoint,
    ):
        checkpoint.carry_rest()
    with store.snapshot(graph=graph) as checkpoint:
        write(checkpoint, ("b", "k1"), 3, 2)
        checkpoint.drop("a", "k1")
        checkpoint.drop("a", "union")
    assert names(checkpoint) == {("b", "k1")}
    unnamed = JobGraph.from_toml("[[operator]]\nname = 'x'\nparallelism = 2\nuid = 'b'")
    with store.snapshot(graph=unnamed) as checkpoint:
        checkpoint.carry_rest()
    assert names(checkpoint) == {("b", "k1")}


def test_an_operator_without_a_uid_is_carried_by_its_graph_only(tmp_path: Path) -> None:
    store = opened(tmp_path)
    graph = JobGraph.from_toml("[[operator]]\nname = 'x'\nparallelism = 2")
    with store.snapshot(graph=graph) as checkpoint:
        write(checkpoint, ("x", "k1"), 3, 2)
    with (
        pytest.raises(InvalidArgumentError, match="give the operator a uid"),
        store.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.carry_rest()
    with store.snapshot(graph=graph) as checkpoint:
        checkpoint.carry_rest()
    assert content(store)["x", "k1"] == content(store, 1)["x", "k1"]


def test_a_committed_checkpoint_carries_and_drops_nothing(store: StateStore) -> None:
    with store.snapshot(parallelism=2, batch=("job", 1)) as checkpoint:
        checkpoint.carry_rest()
    with store.snapshot(parallelism=2, batch=("job", 1)) as checkpoint:
        assert checkpoint.carry("a", "k1") == store.checkpoint().manifest.keyed_entry("a", "k1")
        with pytest.raises(StateNotFoundError):
            checkpoint.carry("a", "other")
        checkpoint.drop("a", "union")
        checkpoint.carry_rest()
        assert checkpoint.left_out() == ()
    assert names(checkpoint) == {("a", "k1"), ("a", "union")}


def test_a_snapshot_that_is_never_entered_warns(store: StateStore) -> None:
    with pytest.warns(ResourceWarning, match=r"write 'with store\.snapshot"):
        store.snapshot(parallelism=2)
    checkpoint = store.snapshot(parallelism=2)
    with pytest.raises(InvalidArgumentError, match=r"write 'with store\.snapshot"):
        checkpoint.write_keyed("a", "k1", [{"k": "x"}], key="k")
    checkpoint.abandon()
    with pytest.raises(InvalidArgumentError, match="has already begun"), checkpoint:
        raise AssertionError
    with pytest.raises(InvalidArgumentError, match="raise an exception there instead"):  # noqa: SIM117
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.abandon()
    assert store.checkpoints() == (1,)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_snapshot_that_was_given_up_or_used_does_not_warn(store: StateStore) -> None:
    store.snapshot(parallelism=2).abandon()
    with store.snapshot(parallelism=2, batch=("job", 1)) as checkpoint:
        checkpoint.carry_rest()
    store.snapshot(parallelism=2, batch=("job", 1))  # it is committed: there is nothing to write
    del checkpoint
    gc.collect()
    assert store.checkpoints() == (1, 2)


def test_recorded_losses_follow_an_operator_to_its_new_uid(store: StateStore) -> None:
    """I16: the state is carried under its new uid, and still has its recorded losses."""
    lost = LeftOutState(
        operator="a", state="k1", reason="damaged", command="salvage", first=0, last=1
    )
    whole = LeftOutState(operator="c", state=None, reason="not read", command="flink import")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.collected.record(left_out=[lost, whole])
        checkpoint.carry_rest()
    renamed = JobGraph.from_toml(
        "[job]\nparallelism = 2\n[[operator]]\nname = 'renamed'\nuid = 'b'\n"
        f"uid_hash = '{operator_id('a')}'\nmax_parallelism = {GROUPS}\n"
    )
    with store.snapshot(graph=renamed) as checkpoint:
        checkpoint.carry_rest()
    assert ("b", "k1") in content(store)
    assert [one.label for one in store.checkpoint().manifest.left_out] == ["b/k1:0-1", "c"]


def test_the_state_of_a_renamed_operator_does_not_block_a_new_one(tmp_path: Path) -> None:
    """Operator x was renamed y, and a new x was added. Both would have the same table.

    The error says so, with a remedy.
    """
    store = opened(tmp_path)
    before, after = (
        JobGraph.from_toml(
            "\n".join(f"[[operator]]\nname = '{name}'\nparallelism = 2" for name in job)
        )
        for job in ("x", "yx")
    )
    with store.snapshot(graph=before) as checkpoint:
        write(checkpoint, ("x", "k1"), 3, 2)
    in_full = r"the state of 'y', write it in full .*checkpoint\.write_keyed\('y', 'k1'"
    with store.snapshot(graph=after) as checkpoint:
        checkpoint.carry("y", "k1")
        with pytest.raises(InvalidArgumentError, match=in_full):
            write(checkpoint, ("x", "k1"), 3, 2)
    checkpoint = store.snapshot(graph=after).__enter__()
    write(checkpoint, ("x", "k1"), 3, 2)
    checkpoint.carry_rest()
    with pytest.raises(InvalidArgumentError, match=in_full):
        checkpoint.__exit__(None, None, None)
    assert store.checkpoints() == (1, 2)
    with store.snapshot(graph=after) as checkpoint:
        write(checkpoint, ("y", "k1"), 3, 2)
        write(checkpoint, ("x", "k1"), 3, 2)
    assert names(checkpoint) == {("x", "k1"), ("y", "k1")}
