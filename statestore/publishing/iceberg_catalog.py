"""The user's Iceberg catalog: open it, find a state's table, delete metadata, and convert errors.

A catalog is named in pyiceberg's configuration, or passed as an object of pyiceberg.

Files of a table's metadata are deleted with the last snapshot that has them. Iceberg's own expiry
of snapshots deletes these files together with data files. A published table does not allow it,
because its data files belong to a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from statestore.errors import (
    CommitConflictError,
    InvalidArgumentError,
    MissingDependencyError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.extras import install_hint, needs_extra
from statestore.storage.addresses import without_credentials

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


with needs_extra("iceberg", "an Iceberg table"):
    from pyiceberg.catalog import Catalog as IcebergCatalog
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        NamespaceAlreadyExistsError,
        NoSuchNamespaceError,
        NoSuchTableError,
        NotInstalledError,
        RESTError,
        TableAlreadyExistsError,
        ValidationException,
    )
    from sqlalchemy.exc import SQLAlchemyError


STORE, STORE_URL = "statestore.store-id", "statestore.store-url"
OPERATOR, STATE = "statestore.operator", "statestore.state"
"""Properties of a table that show which state it shows."""
CHECKPOINT, HOLD = "statestore.checkpoint-id", "statestore.hold"
"""Members of a snapshot's summary: the checkpoint that it shows, and the hold of its files."""

_NO_TABLE = (NoSuchTableError, NoSuchNamespaceError)
NOT_COMMITTED = (
    *(CommitFailedException, TableAlreadyExistsError, ValidationException),
    *_NO_TABLE,
)
"""Errors of pyiceberg after which a commit is certainly not visible."""


def open_catalog(catalog: Any, options: Mapping[str, str]) -> IcebergCatalog:
    """Return a catalog of pyiceberg.

    Args:
        catalog: Its name in pyiceberg's configuration, or a catalog.
        options: Properties that are added to those of the configuration.

    Returns:
        The catalog; a server is not necessarily contacted yet.

    Raises:
        InvalidArgumentError: The catalog is not configured, or a property is invalid.
        StorageError: The catalog does not answer.
    """
    if isinstance(catalog, IcebergCatalog):
        if options:
            raise InvalidArgumentError(
                "catalog_options belong to a catalog's name; pass them when you load the catalog"
            )
        return catalog
    if not isinstance(catalog, str) or not catalog:
        raise InvalidArgumentError(
            f"catalog must be the name of an Iceberg catalog, or a Catalog of pyiceberg, not "
            f"{type(catalog).__name__}"
        )
    with catalog_errors(f"catalog {catalog!r}"):
        try:
            return load_catalog(catalog, **options)
        except ValueError as error:
            raise InvalidArgumentError(
                f"the Iceberg catalog {catalog!r} cannot be opened: "
                f"{without_credentials(str(error))}; configure it in .pyiceberg.yaml, in "
                f"environment variables PYICEBERG_CATALOG__{catalog.upper()}__URI, or pass its "
                "properties as catalog options"
            ) from error


def full_name(catalog: IcebergCatalog, name: str) -> str:
    """Return a table's name after the catalog's, as in messages and savepoints."""
    return f"{catalog.name}.{name}"


def load_table(catalog: IcebergCatalog, name: str) -> Table | None:
    """Return a table; None if it or its namespace does not exist. Raises StorageError."""
    with catalog_errors(full_name(catalog, name)):
        try:
            return catalog.load_table(name)
        except _NO_TABLE:
            return None


def make_namespace(catalog: IcebergCatalog, namespace: tuple[str, ...]) -> None:
    """Create a namespace, and those that contain it, if they do not exist."""
    for length in range(1, len(namespace) + 1):
        if catalog.namespace_exists(namespace[:length]):
            continue
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(namespace[:length])


def refuse_foreign(table: Table, name: str, store_id: str, operator: str, state: str) -> None:
    """Raise InvalidArgumentError unless a table was published from this state of this store."""
    properties = table.metadata.properties
    if STORE not in properties:
        raise InvalidArgumentError(
            f"the Iceberg table {name} exists and was not made by statestore; choose another name"
        )
    actual = properties[STORE], properties.get(OPERATOR), properties.get(STATE)
    if actual != (store_id, operator, state):
        raise InvalidArgumentError(
            f"the Iceberg table {name} shows state {actual[2]!r} of operator {actual[1]!r} in "
            f"{properties.get(STORE_URL)} (store {actual[0]}); choose another name, or remove that "
            "table with 'statestore publish --remove' first"
        )


def refuse_changed(table: Table, name: str, advice: str) -> None:
    """Raise CommitConflictError if another program has changed the table's content."""
    snapshot = table.current_snapshot()
    if snapshot is None or hold_of(snapshot) is not None:  # None: a publication did not finish
        return
    operation = "unknown" if snapshot.summary is None else snapshot.summary.operation.value
    raise CommitConflictError(
        f"the Iceberg table {name} has snapshot {snapshot.snapshot_id} of another program "
        f"(operation {operation}); {advice}"
    )


def hold_of(snapshot: Snapshot) -> str | None:
    """Return the name of the savepoint that keeps a snapshot's files; None if another made it."""
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(HOLD)


@contextmanager
def catalog_errors(subject: str) -> Iterator[None]:
    """Convert pyiceberg's errors to errors of this package; ``subject`` names the table."""
    try:
        yield
    except StateStoreError:
        raise
    except _NO_TABLE as error:
        raise NotFoundError(f"{subject} no longer exists ({_text(error)})") from error
    except NOT_COMMITTED as error:
        raise CommitConflictError(
            f"{subject} was changed by another program at the same time ({_text(error)}); nothing "
            "was published. Run the command again"
        ) from error
    except CommitStateUnknownException as error:
        raise StorageError(
            f"the catalog did not confirm the change of {subject} ({_text(error)}), which may be "
            "visible or not. Run the command again, which finds out"
        ) from error
    except NotInstalledError as error:
        raise MissingDependencyError(
            f"the catalog of {subject} needs a package that is not installed ({_text(error)}); "
            f"install it, or the extra 'iceberg': {install_hint('iceberg')}"
        ) from error
    except (RESTError, SQLAlchemyError, OSError) as error:
        raise StorageError(
            f"the Iceberg catalog failed for {subject}: {_text(error)}; check its address and its "
            "credentials, and run the command again"
        ) from error


def _text(error: Exception) -> str:
    """Return the first line of a library's message, without credentials."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return without_credentials(lines[0]).rstrip(".")


def metadata_files(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the manifest lists and manifests of some snapshots."""
    files: set[str] = set()
    for snapshot in snapshots:
        files.add(snapshot.manifest_list)
        files |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    return files


def delete_metadata(io: FileIO, files: Iterable[str]) -> int:
    """Delete files of a table's metadata; return how many could not be deleted."""
    left = 0
    for file in sorted(files):
        try:
            io.delete(file)
        except FileNotFoundError:
            continue
        except OSError:  # it is garbage, which takes space and does no harm
            left += 1
    return left
