"""The job of docs/RESCALING.md: its checkpoint with sizes that are the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from unittest import mock

from statestore import Checkpoint, KeyGroupAssignment, Manifest, StateStore, key_group_of
from statestore.catalog.catalog import CheckpointRef
from statestore.format.manifest import KeyedEntry, OperatorEntry
from statestore.jobgraph import JobGraph

OLD, NEW = 3, 4
STORE = "jobstate"
ROW_BYTES, ELEMENT_BYTES = 1_000_000, 1_000
HOSTS = "abc"


@dataclass(frozen=True)
class Job:
    """The input of every drawing: the graph, and the checkpoint with its fixed sizes."""

    graph: JobGraph
    manifest: Manifest

    @classmethod
    def here(cls) -> Job:
        """Return the job whose store and graph are in the working directory."""
        graph = JobGraph.from_toml(Path("old.toml").read_text())
        return cls(graph, with_pretended_sizes(StateStore.open(STORE).checkpoint().manifest))

    @property
    def sums(self) -> KeyedEntry:
        return self.manifest.keyed_entry("totals", "sums")

    @property
    def max_parallelism(self) -> int:
        return self.sums.state.max_parallelism

    @cached_property
    def users(self) -> tuple[str, ...]:
        """The stored keys, sorted."""
        state = StateStore.open(STORE).restore(parallelism=1).keyed("totals", "sums")
        return tuple(sorted(state.to_arrow(0)["user"].to_pylist()))

    @property
    def bytes_of_key_groups(self) -> list[int]:
        sizes = [0] * self.max_parallelism
        for handle in self.sums.handles:
            assert len(handle.key_groups) == 1
            sizes[handle.key_groups.first] = handle.size_bytes
        return sizes

    def key_group_of(self, user: str) -> int:
        return key_group_of(user, max_parallelism=self.max_parallelism)

    def assignment(self, parallelism: int) -> KeyGroupAssignment:
        return KeyGroupAssignment(max_parallelism=self.max_parallelism, parallelism=parallelism)

    def on_hosts(self) -> KeyedEntry:
        """Return the keyed state with the copies of each file on the host of its old subtask."""
        old = self.assignment(OLD)
        handles = tuple(
            replace(handle, host=HOSTS[old.subtask_of(handle.key_groups.first)])
            for handle in self.sums.handles
        )
        return replace(self.sums, handles=handles)


def with_pretended_sizes(manifest: Manifest) -> Manifest:
    """Return a manifest whose files have the sizes that the page states."""
    return replace(
        manifest,
        keyed=tuple(_keyed(entry) for entry in manifest.keyed),
        operator=tuple(_operator(entry) for entry in manifest.operator),
    )


@contextmanager
def pretended_sizes() -> Iterator[None]:
    """Make plans and ``show`` report these sizes; a restore reads the real files."""
    find = StateStore.checkpoint

    def checkpoint(store: StateStore, reference: CheckpointRef = "latest") -> Checkpoint:
        found = find(store, reference)
        return replace(found, manifest=with_pretended_sizes(found.manifest))

    with mock.patch.object(StateStore, "checkpoint", checkpoint):
        yield


def _keyed(entry: KeyedEntry) -> KeyedEntry:
    handles = [
        replace(handle, size_bytes=handle.rows * ROW_BYTES, host="") for handle in entry.handles
    ]
    return replace(entry, handles=tuple(handles))


def _operator(entry: OperatorEntry) -> OperatorEntry:
    handles = [replace(handle, size_bytes=handle.rows * ELEMENT_BYTES) for handle in entry.handles]
    return replace(entry, handles=tuple(handles))
