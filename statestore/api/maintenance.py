"""``store.maintenance``: the commands on kept checkpoints, and their holds.

Most methods are functions of ``maintenance/``. None needs a job, and few need Spark.
"""

from __future__ import annotations

from statestore.arguments import checked_methods
from statestore.catalog.catalog import CheckpointRef
from statestore.catalog.holds import Pin, Savepoint
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance import compact as compact_command
from statestore.maintenance import copy as copy_command
from statestore.maintenance import edit as edit_command
from statestore.maintenance import erase as erase_command
from statestore.maintenance import erase_search as search_command
from statestore.maintenance import gc as gc_command
from statestore.maintenance import rekey as rekey_command
from statestore.maintenance import repair as repair_command
from statestore.maintenance import retention as retention_command
from statestore.maintenance import salvage as salvage_command
from statestore.maintenance import translate_offsets as translate_command
from statestore.maintenance import upgrade as upgrade_command
from statestore.maintenance import verify as verify_command
from statestore.maintenance.store_context import HasContext
from statestore.publishing.iceberg_table import IcebergTable, PublishedState, UnpublishedTable


@checked_methods
class StoreMaintenance(HasContext):
    """Verifies, salvages, copies, edits and collects checkpoints; from ``store.maintenance``."""

    savepoint = retention_command.make_savepoint
    pin = retention_command.pin
    unpin = retention_command.unpin
    expire = retention_command.expire
    gc = gc_command.collect_garbage
    compact = compact_command.compact
    verify = verify_command.verify
    salvage = salvage_command.salvage
    repair = repair_command.repair
    upgrade = upgrade_command.upgrade
    edit = edit_command.edit
    rekey = rekey_command.rekey
    plan_translation = translate_command.plan_translation
    forget = erase_command.forget
    find_subject = search_command.find_subject
    copy = copy_command.copy

    def delete_savepoint(self, name: str) -> Savepoint | None:
        """Release a savepoint.

        Its checkpoint can then expire like any other. If it had expired before, it is no longer
        readable.

        Args:
            name: the name of the savepoint.

        Returns:
            The savepoint; None if it was damaged.

        Raises:
            CheckpointNotFoundError: with the names of the existing savepoints.
        """
        return self.parts.catalog().holds.delete_savepoint(name)

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints, ordered by name.

        Raises:
            MalformedManifestError: for a damaged one.
        """
        return self.parts.catalog().holds.savepoints()

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins, including those whose lease has ended.

        Raises:
            MalformedManifestError: for a damaged one.
        """
        return self.parts.catalog().holds.pins()

    def publish_iceberg(
        self,
        operator: str,
        state: str,
        table: IcebergTable,
        *,
        checkpoint: CheckpointRef = "latest",
        replace: bool = False,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> PublishedState:
        """Show a state of a checkpoint as an Iceberg table, without a copy of its files.

        The table is created, or changed in one commit from the checkpoint that it shows now. A
        missing namespace is created as well. A savepoint keeps the checkpoint's files as long as a
        snapshot of the table needs them. If the table already shows the checkpoint, nothing is
        done.

        Args:
            operator: the operator.
            state: the state, keyed or operator.
            table: the table, such as ``IcebergTable("fraud.totals", catalog="lake")``.
            checkpoint: as in :meth:`savepoint`. A checkpoint that only a savepoint keeps is
                refused.
            replace: removes what another program has changed in the table; otherwise a changed
                table is refused.
            dry_run: reports what would change, and changes nothing.
            on_progress: called with the number of described files and the total.

        Returns:
            The table and its change.

        Raises:
            CheckpointNotFoundError or StateNotFoundError: if the checkpoint or state does not
                exist.
            InvalidArgumentError: for a table of another state or program.
            UnsupportedTypeError: for a column that an Iceberg table cannot have.
            IncompatibleStateError: for a state with changes; :meth:`compact` with ``everything``
                folds them.
            CommitConflictError: if another program changed the table.
            CorruptionError: if a file is damaged.
            MissingDependencyError: without pyiceberg.
            StorageError: if the catalog or the store cannot be read or written.
        """
        from statestore.publishing.publish import publish  # needs pyiceberg

        return publish(
            self,
            operator,
            state,
            table,
            checkpoint=checkpoint,
            replaces=replace,
            dry_run=dry_run,
            progress=on_progress or ignore_progress,
        )

    def unpublish_iceberg(
        self, table: IcebergTable, *, replace: bool = False, dry_run: bool = False
    ) -> UnpublishedTable:
        """Remove an Iceberg table of this store, and release the checkpoints that it kept.

        The files of its metadata are deleted, data files are not. If the table is already gone,
        its savepoints are deleted.

        Args:
            table: the table.
            replace: removes the table even if another program has changed it.
            dry_run: reports what would be removed, and changes nothing.

        Returns:
            The removed table and savepoints.

        Raises:
            NotFoundError: if neither the table nor a savepoint for it exists.
            InvalidArgumentError: for a table that does not show a state of this store.
            CommitConflictError: for a table that another program changed unless ``replace`` is set.
            MissingDependencyError: without pyiceberg.
            StorageError: if the catalog or the store cannot be read or written.
        """
        from statestore.publishing.publish import unpublish  # needs pyiceberg

        return unpublish(self.parts.catalog(), table, replace=replace, dry_run=dry_run)
