"""Find the claims of replaced writers that can be deleted, and delete them (I4, I6).

A writer reads two claims before it commits: its own, and the one after it (``catalog/fence.py``).
It has been replaced if the next one exists, or if its own one does not. So a deletion must never
leave a claim whose successor is gone:

* Claims are deleted in ascending order. Each deletion is durable before the next one begins.
* A claim stays if its predecessor exists although the listing lacks it, or if the listing has a gap
  below it.

The two newest claims stay. So a claim that is missing proves that the one after it was followed by
another, and a writer that finds the predecessor of its new claim missing knows that it was
replaced.

**The announced ids.** A command may read the claims from the newest one back to the first one with
an announced id that is above all used ids (``Fence.announced_ids``). While such a claim exists, all
claims stay. Announced ids never decrease from one claim to the next, so otherwise no reader needs a
claim before the newest one.

**The age.** A writer of release 0.1.0 does not read the predecessor of its new claim. If it pauses
between its look for the newest claim and the put of its own, and that name was deleted meanwhile,
it takes itself for the newest writer. For this reason a claim that such a release could follow
stays until its successor is 30 days old. A claim of a newer writer version stays until its
successor has the minimum age of the collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from statestore.errors import FormatVersionError, MalformedManifestError
from statestore.format.claim_documents import claim_from_json
from statestore.format.names import WRITERS, generation_of, writer_path
from statestore.maintenance.gc_mark import LONGEST_PAUSE_MS, is_old
from statestore.storage import Listed, Storage

__all__ = ["delete_claims", "replaced_claims"]

_KEPT = 2  # newest claims


def replaced_claims(
    storage: Storage,
    listing: Iterable[Listed],
    newest_id: int,
    minimum_age_ms: int,
    now_ms: int,
) -> tuple[int, ...]:
    """Return the generations of the claims to delete, ascending.

    ``newest_id`` is the greatest checkpoint id that was ever used. If the newest claim cannot be
    read, no claim is deleted, because ``repair`` may need the earlier ones. Raises StorageError.
    """
    times = {
        generation: item.modified_ms
        for item in listing
        if (generation := generation_of(item.name)) is not None
    }
    generations = sorted(times)
    if len(generations) <= _KEPT or _exists(storage, generations[0] - 1):
        return ()
    newest = generations[-1]
    try:
        raw = storage.read(writer_path(newest))
        claim = claim_from_json(raw, name=writer_path(newest), generation=newest)
    except (MalformedManifestError, FormatVersionError, FileNotFoundError):
        return ()
    if claim.announced_id > newest_id:
        return ()
    first_new = newest if claim.upgrade is None else claim.upgrade.generation
    replaced: list[int] = []
    for generation, successor in pairwise(generations[: 1 - _KEPT]):
        pause_ms = LONGEST_PAUSE_MS if generation < first_new else 0
        age_ms = max(minimum_age_ms, pause_ms)
        has_gap = bool(replaced) and generation != replaced[-1] + 1
        if has_gap or not is_old(max(times[generation], times[successor]), age_ms, now_ms):
            break
        replaced.append(generation)
    return tuple(replaced)


def delete_claims(storage: Storage, generations: Sequence[int]) -> None:
    """Delete these claims, which must be ascending, one after another. Raises StorageError."""
    for generation in generations:
        storage.delete(writer_path(generation))
        storage.sync([f"{WRITERS}/"])


def _exists(storage: Storage, generation: int) -> bool:
    if generation < 1:
        return False
    try:
        return storage.size(writer_path(generation)) >= 0
    except FileNotFoundError:
        return False
