"""The registry of shared files: every answer of Flink's class, and further properties."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, NotFoundError
from statestore.jobgraph.retention import ClaimMode, SharedFile, SharedFiles
from tests.support.vectors import cases

CASES = cases("checkpoints", "registry")
ERRORS: dict[str, type[Exception]] = {
    "unknown_state": NotFoundError,
    "different_handle": InvalidArgumentError,
}


def step(registry: SharedFiles, event: Any) -> tuple[SharedFiles, Any]:
    """Return the registry after one event of a vector, and the expected answer."""
    if event["ev"] == "restored":
        return registry.restored(event["cp"], event["mode"]), None
    if event["ev"] == "lowest":
        registry, deleted, in_use = registry.release(event["cp"])
        return registry, {"deleted": list(deleted), "in_use": list(in_use)}
    used = registry.use(event["cp"], {event["key"]: event["handle"]})
    return used.registry, {"returned": used.handles[event["key"]]}


@pytest.mark.parametrize("number", range(len(CASES)))
def test_files_are_kept_and_deleted_as_flink_does(number: int) -> None:
    registry = SharedFiles()
    case = CASES[number]
    for event, expected in zip(case["in"]["events"], case["out"], strict=True):
        if expected and "error" in expected:
            with pytest.raises(ERRORS[expected["error"]]):
                step(registry, event)
        else:
            registry, got = step(registry, event)
            assert got == expected


def test_an_error_has_a_single_class() -> None:
    registry = SharedFiles().use(1, {"k": "h1"}).registry
    assert not issubclass(NotFoundError, InvalidArgumentError)
    with pytest.raises(
        InvalidArgumentError, match="'h2' for 'k', which has been 'h1' since checkpoint"
    ):
        registry.use(2, {"k": "h2"})
    with pytest.raises(NotFoundError, match=r"checkpoint 2 uses file 'kk'.*did you mean 'k'"):
        registry.use(2, {"kk": None})


def test_a_checkpoint_registers_all_its_files_or_none() -> None:
    before = SharedFiles().use(1, {"a": "ha"}).registry
    with pytest.raises(NotFoundError):
        before.use(2, {"a": None, "b": "hb", "c": None})
    after, handles = before.use(2, {"a": None, "b": "hb"})
    assert handles == {"a": "ha", "b": "hb"}
    assert after.files == {"a": SharedFile("ha", 1, 2), "b": SharedFile("hb", 2, 2)}
    assert before == SharedFiles({"a": SharedFile("ha", 1, 1)})
    assert pickle.loads(pickle.dumps(after)) == after


@given(
    st.lists(st.tuples(st.sets(st.sampled_from("abcd")), st.integers(0, 3)), max_size=12),
    st.sampled_from(ClaimMode),
    st.integers(1, 12),
)
def test_only_own_files_that_no_kept_checkpoint_uses_are_deleted_and_once(
    steps: list[tuple[set[str], int]], mode: ClaimMode, restored: int
) -> None:
    """Every checkpoint uses some keys. The oldest checkpoints are released, and at the end all of
    them.
    """
    registry, lowest = SharedFiles(), 1
    uses: dict[int, set[str]] = {}
    created: dict[str, int] = {}
    gone: list[str] = []
    for checkpoint, (keys, dropped) in enumerate(steps, 1):
        known = registry.files
        files = {key: None if key in known else f"{key}{checkpoint}" for key in keys}
        registry, handles = registry.use(checkpoint, files)
        uses[checkpoint] = set(handles.values())
        created |= {handle: checkpoint for handle in files.values() if handle}
        if checkpoint == restored:
            registry = registry.restored(checkpoint, mode)
        lowest = min(lowest + dropped, checkpoint)
        registry, deleted, in_use = registry.release(lowest)
        gone += deleted
        kept = {handle for one, used in uses.items() if one >= lowest for handle in used}
        assert not kept & set(gone)
        assert {file.handle for file in registry.files.values()} == kept
        assert in_use == ()
    unclaimed = restored if mode is not ClaimMode.CLAIM and restored <= len(steps) else 0
    gone += registry.release(len(steps) + 1).deleted
    assert len(gone) == len(set(gone))
    # Files of the restored history are deleted only if they were released before the restore.
    assert {handle for handle in created if created[handle] > unclaimed} <= set(gone)
    last_use = {h: max(use for use in uses if h in uses[use]) for h in created}
    assert all(last_use[h] < unclaimed for h in gone if created[h] <= unclaimed)


def test_a_restored_native_savepoint_keeps_its_directory_while_a_file_is_used() -> None:
    registry = SharedFiles().use(5, {"a": "ha", "b": "hb"}).registry
    registry = registry.restored(5, "CLAIM", native_savepoint=True)
    registry = registry.use(6, {"a": None, "c": "hc"}).registry
    first = registry.release(6)
    assert (first.deleted, first.in_use) == (("hb",), (5,))
    last = first.registry.use(7, {"c": None}).registry.release(7)
    assert (last.deleted, last.in_use) == (("ha",), ())


def test_a_checkpoint_may_ask_for_its_directory_to_be_kept() -> None:
    registry = SharedFiles().use(1, {"a": "ha"}, in_directory=True).registry
    registry = registry.use(2, {"a": None, "b": "hb"}).registry
    assert registry.release(2).in_use == (1,)
    assert registry.release(3).in_use == ()


def test_after_no_claim_the_first_checkpoint_is_full() -> None:
    assert [mode for mode in ClaimMode if mode.first_is_full] == [ClaimMode.NO_CLAIM]
    assert [mode for mode in ClaimMode if mode.deletes] == [ClaimMode.CLAIM]


def test_an_unknown_claim_mode_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'NO_CLAIM', 'CLAIM', 'LEGACY'"):
        SharedFiles().restored(1, "KEEP")


@pytest.mark.parametrize("checkpoint", [-1, 1.0, "1", True, None])
def test_an_invalid_checkpoint_id_is_refused(checkpoint: Any) -> None:
    registry = SharedFiles()
    for ask in (
        lambda: registry.use(checkpoint, {}),
        lambda: registry.restored(checkpoint, "CLAIM"),
        lambda: registry.release(checkpoint),
    ):
        with pytest.raises(InvalidArgumentError, match="a checkpoint id must be an integer"):
            ask()
