"""The user's Iceberg catalog: open it, find the table of a state, and convert its errors.

A catalog is named in pyiceberg's configuration, or passed as an object of pyiceberg.

Files of a table's metadata are deleted with the last snapshot that has them. Iceberg's own expiry
of snapshots deletes these files together with data files. A published table does not allow it,
because its data files belong to a store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from statestore.arguments import checked_fields
from statestore.errors import (
    CommitConflictError,
    InvalidArgumentError,
    MissingDependencyError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.extras import install_hint, needs_extra
from statestore.format.left_out import LeftOutState
from statestore.storage.addresses import without_credentials

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

DEFAULT_RETAIN = 2
_TABLE = re.compile(r"[^.\s]+(\.[^.\s]+)+")


@checked_fields
@dataclass(frozen=True)
class IcebergTable:
    """A table of an Iceberg catalog that shows, or will show, a state.

    Attributes:
        name: the table's name with its namespace, such as ``fraud.totals``.
        catalog: the name of a catalog in pyiceberg's configuration, or a ``Catalog`` of pyiceberg.
        catalog_options: properties of a named catalog, in addition to those in the configuration.
        retain: how many snapshots of the table stay readable, with their files. By default the
            newest one, and the one whose readers may not be done.
        store_url: the URL of the store for readers of the table. By default it follows from the
            store's own URL.

    Raises:
        InvalidArgumentError: for a name without a namespace, or a ``retain`` below one.
    """

    name: str
    _: KW_ONLY
    catalog: Any
    catalog_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    retain: int = DEFAULT_RETAIN
    store_url: str | None = None

    def __post_init__(self) -> None:
        """Check name and number."""
        if not _TABLE.fullmatch(self.name):
            raise InvalidArgumentError(
                f"{self.name!r} is not the name of an Iceberg table; write it as NAMESPACE.NAME"
            )
        if self.retain < 1:
            raise InvalidArgumentError(
                f"retain must be 1 or more, not {self.retain}: the table's newest snapshot stays"
            )

    @property
    def namespace(self) -> tuple[str, ...]:
        """The parts of the table's namespace."""
        return tuple(self.name.split(".")[:-1])


@dataclass(frozen=True, kw_only=True)
class PublishedState:
    """The table and its change, or in a dry run the change to make.

    ``files``, ``size_bytes`` and ``rows`` describe the published state. ``added_files`` and
    ``removed_files`` are numbers of files that the table's metadata gets or loses. ``snapshot`` is
    the id of the table's new snapshot as text; None if nothing was committed.
    ``replaced_checkpoint`` is the checkpoint that the table showed before. ``hold`` is the
    savepoint that keeps the files, and ``released`` are deleted savepoints. ``other_holds`` are
    savepoints of another table with this name, which was dropped or is in another catalog.
    ``is_history_lost`` is True if older snapshots were removed because their columns could no
    longer be read. ``leftover_metadata`` counts files of the table's metadata that could not be
    deleted. ``ttl_ms`` is the TTL of the state: the table also shows expired rows.
    """

    store: str
    checkpoint_id: int
    operator: str
    state: str
    table: str
    dry_run: bool
    rows: int
    files: int
    size_bytes: int
    added_files: int
    removed_files: int
    replaced_checkpoint: int | None
    snapshot: str | None
    hold: str | None
    released: tuple[str, ...]
    other_holds: tuple[str, ...]
    is_history_lost: bool
    leftover_metadata: int
    ttl_ms: int | None
    left_out: tuple[LeftOutState, ...] = ()

    json_properties: ClassVar[tuple[str, ...]] = ("is_current",)

    @property
    def is_current(self) -> bool:
        """True if the table already showed this checkpoint, and nothing had to be done."""
        return self.snapshot is None and not self.dry_run


@dataclass(frozen=True, kw_only=True)
class UnpublishedTable:
    """The removed table, or in a dry run the table to remove.

    ``is_missing`` is True if the catalog no longer had the table. ``released`` are the deleted
    savepoints. ``leftover_metadata`` counts files of the table's metadata that could not be
    deleted.
    """

    store: str
    table: str
    dry_run: bool
    is_missing: bool
    released: tuple[str, ...]
    leftover_metadata: int


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
