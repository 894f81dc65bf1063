"""Raise the writer version of a store, so that older releases can no longer write to it.

The writer version is part of the newest claim, and each claim inherits it. So an upgrade is one
more claim: one document that is put if absent, next to the unchanged checkpoints. As after any
claim, a writer that is running can no longer commit. A writer of an older release refuses the new
claim by its format version when it opens the store again.

An upgrade can be undone until a writer with the new version has committed a checkpoint. Ids never
decrease from one claim to the next, so the greatest id's manifest tells whether that happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import WRITER_VERSION, WRITER_VERSIONS, Claim
from statestore.errors import InvalidArgumentError
from statestore.maintenance.store_context import HasContext


@dataclass(frozen=True, kw_only=True)
class UpgradedStore:
    """The writer version of a store before and after the command, or in a dry run the next one.

    Only releases from ``needs_release`` on can write to the store afterwards.
    """

    store: str
    dry_run: bool
    previous_version: int
    writer_version: int
    needs_release: str

    @property
    def is_changed(self) -> bool:
        """True if the version changed, or in a dry run would change."""
        return self.previous_version != self.writer_version

    json_properties = ("is_changed",)


def upgrade(store: HasContext, *, back: bool = False, dry_run: bool = False) -> UpgradedStore:
    """Raise the store's writer version, so that older releases can no longer write to it.

    No checkpoint changes, and an older release still reads each checkpoint that it understands.
    This object takes over the store, and a running job can no longer commit until it reopens
    the store.

    Args:
        back: undoes the last upgrade. That is possible until a checkpoint was committed after
            it.
        dry_run: reports what would change, and changes nothing.

    Returns:
        The writer version before and after.

    Raises:
        InvalidArgumentError: if the upgrade can no longer be undone, or if an interrupted
            command has announced a checkpoint.
        CommitConflictError: if another writer takes over the store meanwhile.
        StoreNotFoundError, MalformedManifestError, FormatVersionError or StorageError: the
            command can be run again.
    """
    catalog, fence = store.parts.catalog(), store.parts.fence
    claim = fence.newest_claim()
    before = 1 if claim is None else claim.writer_version
    version = _wanted_version(claim, back)
    if version != before:
        _check(catalog, claim, back)
        if not dry_run:
            # Other writers are fenced by this claim, so a checkpoint that the first check missed is
            # found by the second one.
            claim = fence.claim(announce=True)
            _check(catalog, claim, back)
            version = _wanted_version(claim, back)
            if version != claim.writer_version:
                fence.set_writer_version(version)
    return UpgradedStore(
        store=catalog.storage.url,
        dry_run=dry_run,
        previous_version=before,
        writer_version=version,
        needs_release=WRITER_VERSIONS[version],
    )


def _wanted_version(claim: Claim | None, back: bool) -> int:
    if not back:
        return WRITER_VERSION
    last = None if claim is None else claim.upgrade
    return 1 if last is None else last.previous_version


def _check(catalog: Catalog, claim: Claim | None, back: bool) -> None:
    """Raise InvalidArgumentError if the version cannot be raised, or with ``back`` undone."""
    if claim is None:
        return
    url, next_id = catalog.storage.url, catalog.next_id()
    if back and claim.upgrade is not None and next_id > 1:
        newest = catalog.load_header(next_id - 1)
        if newest.writer.generation >= claim.upgrade.generation:
            raise InvalidArgumentError(
                f"the upgrade of {url} cannot be undone: checkpoint {newest.checkpoint_id} was "
                f"committed with writer version {claim.writer_version}. To continue with an older "
                "release, copy a checkpoint that it can read to another store: 'statestore copy'"
            )
    # A release without the new version reads the earlier claims up to the announcement.
    if claim.announced_id > next_id:
        raise InvalidArgumentError(
            f"the writer version of {url} cannot change while checkpoint {claim.announced_id} is "
            "announced but missing, as after an interrupted purge. First run the interrupted "
            "command again, or take the next checkpoint"
        )
