"""Compare ``diff``, ``as_of`` and ``key_history`` with the model."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fuzz.givers import rows_of
from tests.fuzz.history import Column, Row
from tests.fuzz.kinds import canonical, fitted
from tests.fuzz.model import Identity, Known
from tests.fuzz.readers import Reader, looked_up, same
from tests.fuzz.world import NAME, UID, World

__all__ = ["COMPARING", "changes_between"]


def changes_between(
    a: Known, b: Known, old: dict[Identity, Row], new: dict[Identity, Row]
) -> dict[Identity, str]:
    """Return the change of each row, in the columns that both checkpoints have. A wider type of the
    same value is not a difference.
    """
    kinds = b.kinds
    shared = [name for name in a.names if name in kinds]

    def values(known: Known, row: Row) -> list[Any]:
        return [canonical(fitted(row[name], kinds[name]), kinds[name]) for name in shared]

    found = {}
    for one in {**old, **new}:
        if one not in old or one not in new:
            found[one] = "added" if one in new else "removed"
        else:
            found[one] = "same" if values(a, old[one]) == values(b, new[one]) else "changed"
    return found


def _two(world: World, number: int, draw: Random) -> tuple[int, Known, Known]:
    other = draw.choice(sorted(world.model.known))
    return other, world.model.known[other], world.model.known[number]


def diff(world: World, number: int, draw: Random) -> None:
    """Compare the counts of added, removed and changed rows, without regard to TTL."""
    other, a, b = _two(world, number, draw)
    if world.shape.ttl_ms is not None:  # compaction may have dropped rows that the model keeps
        return
    found = world.store.inspect.diff(other, number, operator=UID, state=NAME, keys=3)
    (state,) = found.states
    wanted = [*changes_between(a, b, a.rows, b.rows).values()]
    counts = {what: wanted.count(what) for what in ("added", "removed", "changed")}
    seen = {"added": state.added, "removed": state.removed, "changed": state.changed}
    assert state.not_compared is None, f"diff {other} {number}: {state.not_compared}"
    assert seen == counts, f"diff {other} {number}: {seen}, not {counts}"


def as_of(world: World, number: int, draw: Random) -> None:
    """Compare each row at two checkpoints."""
    other, a, b = _two(world, number, draw)
    if a.max_parallelism != b.max_parallelism:
        return
    model = world.model
    reader = world.store.inspect.as_of(other, number, UID, NAME, now_ms=model.now_ms)
    identity = [column.name for column in model.identity]
    sides = [
        [Column(f"{c.name}_{side}", c.kind) for c in known.columns if c.name not in identity]
        for side, known in (("a", a), ("b", b))
    ]
    columns = [Column("key_group", "integer"), Column("change", "string")]
    columns += [*model.identity, *sides[0], *sides[1]]
    rows = rows_of(reader.read_all(), columns)
    old, new = model.visible(a), model.visible(b)
    wanted = changes_between(a, b, old, new)
    found = {model.identity_of(row): row["change"] for row in rows}
    assert len(found) == len(rows), "as_of: an entry twice"
    assert found == wanted, f"as_of {other} {number}: {found}, not {wanted}"
    for known, side, of in ((a, "a", old), (b, "b", new)):
        here = [
            {name: row[name if name in identity else f"{name}_{side}"] for name in known.names}
            for row in rows
            if model.identity_of(row) in of
        ]
        same(here, of.values(), known.columns, f"as_of {other} {number}, side {side}")


def key_history(world: World, number: int, draw: Random) -> None:
    """Compare the history of one key."""
    model, keys = world.model, len(world.shape.key)
    seen = {one[:keys]: row for known in model.known.values() for one, row in known.rows.items()}
    if not seen:
        return
    key = draw.choice(sorted(seen, key=repr))
    asked = world.key_of(seen[key])
    history = world.store.inspect.history(asked, UID, NAME, now_ms=model.now_ms)
    assert [one.checkpoint_id for one in history] == sorted(model.known), "key_history: ids"
    before: Any = None
    for one in history:
        known = model.known[one.checkpoint_id]
        wanted = {i: row for i, row in model.visible(known).items() if i[:keys] == key}
        found = looked_up(one.rows or (), known)
        who = f"key_history({asked!r}) at {one.checkpoint_id}"
        same(found, wanted.values(), known.columns, who)
        now = (known.columns, {i: _canonical(row, known) for i, row in wanted.items()})
        if before is not None and before[0] == now[0]:
            assert one.is_changed == (before[1] != now[1]), f"{who}: is_changed {one.is_changed}"
        before = now


def _canonical(row: Row, known: Known) -> tuple[Any, ...]:
    return tuple(canonical(row[c.name], c.kind) for c in known.columns)


COMPARING: dict[str, Reader] = {"diff": diff, "as_of": as_of, "key_history": key_history}
