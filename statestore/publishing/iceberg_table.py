"""The arguments and results of a publication."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from statestore.arguments import checked_fields
from statestore.errors import InvalidArgumentError
from statestore.format.left_out import LeftOutState

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
