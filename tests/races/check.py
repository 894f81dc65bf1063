"""Check the invariants after a race, whichever writer won: I4 and I6, against the store itself.

A checkpoint is visible if and only if one writer was notified that it committed the checkpoint, or
was replaced before it could be notified. It has exactly that writer's rows. Its id is greater than
the ids of all checkpoints that were committed before its writer began. The message to a losing
writer names the winner, which exists.

No orphan file remains, except the files of writers that lost at their put, where nothing is
deleted. The next garbage collection removes those. A request that arrives late can also write a
file again that its writer has deleted.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from statestore import Manifest, StateStore
from statestore.catalog.fence import Claim, claim_from_json
from statestore.format.names import WRITERS, data_file_id
from statestore.rows.digests import rows_digest
from statestore.storage import Storage, open_storage
from tests.races.plan import Race, Try
from tests.races.worker import STATE, UID, rows_of

__all__ = ["problems"]

TAKEN = re.compile(r"checkpoint (\d+) of \S+ was committed by writer (\S+) .*generation (\d+)\)")
PUT = ("committed", "late")
UNSEEN = "after this one had begun"
CHANGED = "another writer changed the Delta table"
REPLACED = re.compile(r"^writer (\S+) \(.*generation (\d+), since .* has taken over")


def problems(
    race: Race,
    tries: Sequence[Try],
    url: str,
    options: dict[str, Any],
    *,
    may_arrive_late: bool = False,
) -> list[str]:
    """Return one sentence for each violated invariant.

    ``may_arrive_late`` is True if the network may deliver a request after its writer gave it up.
    """
    store = StateStore.open(url, table_format=race.table_format, storage_options=options)
    storage = open_storage(url, options)
    claims = [
        claim_from_json(storage.read(name), name=name, generation=at)
        for at, name in enumerate(storage.list(WRITERS), 1)
    ]
    manifests = {
        checkpoint: store.checkpoint(checkpoint).manifest for checkpoint in store.checkpoints()
    }
    named = {
        f"{entry.table.path}/{handle.path}"
        for manifest in manifests.values()
        for entry in manifest.entries
        for handle in entry.handles
    }
    found = [
        *_tables(manifests, storage),
        *_winners(tries, manifests, claims),
        *_contents(race, tries, store, manifests),
        *_order(tries, manifests, claims),
        *_refused(tries),
        *itertools.chain.from_iterable(_loser(each, manifests, claims) for each in tries),
    ]
    # Files that a Delta log may name are also left to garbage collection.
    logged = race.table_format == "delta"
    at_their_put = {
        each.id
        for each in tries
        if (TAKEN.search(each.message) and UNSEEN not in each.message)
        or (logged and each.outcome == "conflict")
    }
    left = {data_file_id(name) for name in {*_data_files(storage)} - named}
    if not left <= at_their_put and not may_arrive_late:
        found.append(f"files are left of {sorted(left, key=str)}, and {at_their_put} lost at a put")
    store.maintenance.gc(minimum_age="0")
    there, shown = {*_data_files(storage)}, _shown(manifests, storage)
    if orphans := sorted(there - named - shown):
        found.append(f"a garbage collection left {orphans}")
    if missing := sorted(named - there):
        found.append(f"files of checkpoints are missing: {missing}")
    return [f"race {race.number}: {problem}" for problem in found]


def _data_files(storage: Storage) -> Iterator[str]:
    return (name for name in storage.list("operators") if "/_delta_log/" not in name)


def _shown(manifests: dict[int, Manifest], storage: Storage) -> set[str]:
    """Return the files in the newest versions of the Delta tables, which stay readable.

    A writer may publish a version after the winner's, and then lose at the put of its manifest.
    """
    entries = [entry for manifest in manifests.values() for entry in manifest.entries]
    tables = {entry.table.path for entry in entries if entry.table.format == "delta"}
    options = storage.delta_options()
    return {
        f"{table}/{uri.rpartition('/')[2]}"
        for table in tables
        for uri in DeltaTable(f"{storage.url}/{table}", storage_options=options).file_uris()
    }


def _tables(manifests: dict[int, Manifest], storage: Storage) -> Iterator[str]:
    """Check that each Delta table has the checkpoint's files at the version in its manifest."""
    for number, manifest in manifests.items():
        for entry in manifest.entries:
            if entry.table.format != "delta":
                continue
            url, options = f"{storage.url}/{entry.table.path}", storage.delta_options()
            table = DeltaTable(url, version=entry.table.version, storage_options=options)
            there = {uri.rpartition("/")[2] for uri in table.file_uris()}
            if there != {handle.path.rpartition("/")[2] for handle in entry.handles}:
                yield f"version {entry.table.version} is not checkpoint {number}: {there}"


def _winners(
    tries: Sequence[Try], manifests: dict[int, Manifest], claims: Sequence[Claim]
) -> Iterator[str]:
    """Check that the visible checkpoints were reported as committed, each exactly once.

    There is a winner, unless the last writer requested an id below one that another writer had
    announced.
    """
    committed = Counter(each.id for each in tries if each.outcome in PUT)
    if set(committed) != set(manifests) or committed.total() != len(committed):
        yield f"visible are {sorted(manifests)}, and reported as put {sorted(committed)}"
    announced = max(claim.announced_id for claim in claims)
    below = any(e.outcome == "refused" and (e.asked_id or 0) < announced for e in tries)
    if not committed and not below:
        yield "nobody won"
    for each in tries:
        if each.outcome == "already" and each.id not in manifests:
            yield f"{each} is not visible"
        if each.outcome in ("committed", "already") and each.asked_id not in (None, each.id):
            yield f"{each} has another id than was asked for"


def _contents(
    race: Race, tries: Sequence[Try], store: StateStore, manifests: dict[int, Manifest]
) -> Iterator[str]:
    """Check that every visible checkpoint is complete and has exactly its writer's rows."""
    for each in tries:
        if each.id not in manifests or each.outcome not in (*PUT, "already"):
            continue
        if manifests[each.id].entries[0].digest != each.digest:
            yield f"checkpoint {each.id} is not what its writer was told: {each}"
        if each.outcome == "already":
            continue
        state = store.restore(checkpoint=each.id, parallelism=2).keyed(UID, STATE)
        found = pa.concat_tables([state.to_arrow(at) for at in range(2)])
        wanted = rows_of(race.number, each.writer, each.number)
        rows = sorted(found.drop_columns(["key_group"]).to_pylist(), key=lambda row: row["k"])
        if rows != wanted.to_pylist() or rows_digest(wanted) != each.digest:
            yield f"checkpoint {each.id} holds {rows}, and not the rows of {each}"


def _order(
    tries: Sequence[Try], manifests: dict[int, Manifest], claims: Sequence[Claim]
) -> Iterator[str]:
    """Check that ids grow with time and generation, and that every generation was claimed."""
    generations = [manifests[manifest].writer.generation for manifest in sorted(manifests)]
    if generations != sorted(generations):
        yield f"generations go down along the ids: {generations}"
    if set(generations) - {claim.generation for claim in claims}:
        yield f"nobody claimed one of {generations}"
    announced = [claim.announced_id for claim in claims]
    if announced != sorted(announced):
        yield "a claim does not hand on the announced id"
    committed = [each for each in tries if each.outcome == "committed"]
    for earlier, later in itertools.permutations(committed, 2):
        if earlier.ended < later.began and earlier.id >= later.id:
            yield f"{later} came after {earlier}"


def _refused(tries: Sequence[Try]) -> Iterator[str]:
    """Check that only a requested id is refused, and only if it was not visible when requested.

    It may become visible later: a writer that stalled before its put commits an id that is lower
    than ids that became visible meanwhile.
    """
    done = {each.id: each.ended for each in tries if each.outcome in PUT}
    for each in tries:
        if each.outcome != "refused":
            continue
        if each.asked_id is None or done.get(each.asked_id, each.ended) < each.began:
            yield f"an id is refused that is visible, or was not asked for: {each}"


def _loser(each: Try, manifests: dict[int, Manifest], claims: Sequence[Claim]) -> Iterator[str]:
    """Check that a loser names a real winner or a newer writer, and that it had to lose."""
    if each.outcome not in ("conflict", "late"):
        return
    taken, replaced = TAKEN.search(each.message), REPLACED.search(each.message)
    if taken:
        winner = manifests.get(int(taken[1]))
        # A newer checkpoint than the base refuses a commit of any id, also of a greater one.
        if winner is None or (winner.checkpoint_id < each.id and UNSEEN not in each.message):
            yield f"lost to no checkpoint: {each}"
        elif (winner.writer.name, winner.writer.generation) != (taken[2], int(taken[3])):
            yield f"names another winner: {each}"
    elif replaced:
        newer = [claim for claim in claims if claim.generation == int(replaced[2])]
        if not newer or newer[0].name != replaced[1] or newer[0].generation <= each.generation:
            yield f"was replaced by nobody: {each}"
    elif CHANGED not in each.message:
        yield f"names nobody: {each}"
