"""Heavy: which key groups and which keys have more than their share of an operator's state."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.catalog.catalog import Catalog
from statestore.commands.plan import select
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.manifest import KeyedEntry
from statestore.model.heavy import HeavyGroup, heaviest, heavy_groups
from statestore.model.weights import Weight
from statestore.storage import Storage
from statestore.table.hot_keys import CountedKey, counted_keys

__all__ = ["KEYS", "READ_GROUPS", "HeavyOperator", "HeavyReport", "HotKeys", "heavy"]

KEYS, READ_GROUPS = 10, 8


@dataclass(frozen=True)
class HotKeys:
    """The keys of a state with most rows, of its ``rows``, in the ``read`` key groups with most.

    ``is_exact`` says that no key of another key group has more rows than the last of these: they
    are the hottest of the whole state.
    """

    state: str
    rows: int
    keys: tuple[CountedKey, ...]
    read: tuple[int, ...]
    is_exact: bool


@dataclass(frozen=True)
class HeavyOperator:
    """The key groups of an operator that are heavy, of all of them, and the hot keys by state.

    States in which a key has one row at most are not among ``hot``.
    """

    uid: str
    states: tuple[str, ...]
    key_groups: int
    rows: int
    size_bytes: int
    heavy: tuple[HeavyGroup, ...]
    hot: tuple[HotKeys, ...]


@dataclass(frozen=True)
class HeavyReport:
    """What is heavy in a checkpoint: above ``factor`` times the even share of bytes or rows."""

    checkpoint_id: int
    by: Weight
    factor: float
    operators: tuple[HeavyOperator, ...]


def heavy(
    catalog: Catalog,
    uid: str | None,
    name: str | None,
    *,
    checkpoint: int | str,
    by: Weight,
    factor: float,
    keys: int,
    read_groups: int,
) -> HeavyReport:
    """Return the heavy key groups and hot keys of the selected keyed states.

    Key groups are known from the manifest; of each state in which a key may have several rows up to
    ``read_groups`` key groups are read for up to ``keys`` keys, 0 for none. Raises
    StateNotFoundError, InvalidArgumentError, MissingFileError or DamagedFileError.
    """
    for what, number in (("keys", keys), ("groups", read_groups)):
        if type(number) is not int or number < 0:
            raise InvalidArgumentError(f"{what} is a number, 0 or more, not {number!r}")
    manifest = catalog.load(checkpoint)
    part = select(manifest, uid, name)
    if not part.keyed and uid is not None:
        what = f"operator {uid!r}" if name is None else f"state {name!r} of operator {uid!r}"
        raise StateNotFoundError(
            f"{what} has no keys in checkpoint {manifest.checkpoint_id}: it is operator state"
        )
    operators = []
    for one in part.uids:
        entries = [entry for entry in part.keyed if entry.state.uid == one]
        if entries:
            hot = [
                _hot(catalog.storage, entry, keys, read_groups)
                for entry in entries
                if keys and read_groups and len(entry.state.identity) > len(entry.state.key)
            ]
            operators.append(_operator(one, entries, by, factor, tuple(hot)))
    return HeavyReport(manifest.checkpoint_id, by, factor, tuple(operators))


def _operator(
    uid: str, entries: list[KeyedEntry], by: Weight, factor: float, hot: tuple[HotKeys, ...]
) -> HeavyOperator:
    return HeavyOperator(
        uid=uid,
        states=tuple(entry.state.name for entry in entries),
        key_groups=entries[0].state.max_parallelism,
        rows=sum(entry.rows for entry in entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
        heavy=heavy_groups(entries, by, factor),
        hot=hot,
    )


def _hot(storage: Storage, entry: KeyedEntry, most: int, read_groups: int) -> HotKeys:
    """Read key groups, those with most rows first, until no other can have a hotter key."""
    groups, after = heaviest(entry, read_groups)
    found: list[CountedKey] = []
    read: list[int] = []
    for group, rows in groups:
        if len(found) == most and found[-1].rows >= rows:
            after = rows
            break
        found += counted_keys(storage, entry, group, most)
        found.sort(key=lambda key: -key.rows)  # stable: of equal counts the earlier one stays
        del found[most:]
        read.append(group)
    enough = len(found) == most and found[-1].rows >= after
    return HotKeys(entry.state.name, entry.rows, tuple(found), tuple(read), not after or enough)
