"""One process that works on stores with the installed release, as its peer asks.

    python -P -m tests.versions.driver FILE_DESCRIPTOR

This module runs with the package of every release in ``releases.toml``. It may only use names that
all of them have.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

import statestore
from statestore import Changes, CompactionRule, StateStore, TimeToLive
from statestore.errors import StateStoreError

__all__ = ["serve"]

BEGUN: dict[str, Any] = {}
_OPTIONS = {"kind", "entry", "time_domain", "dropped"}
"""The arguments that older releases take in an object of their own."""


def _open(url: str, **options: Any) -> StateStore:
    options.setdefault("compaction", None)
    return StateStore.open(url, **options)


def _write_states(checkpoint: Any, requests: list[Mapping[str, Any]]) -> dict[str, int]:
    """Write states, each by the method and the arguments of its request; return the digests."""
    digests = {}
    for request in requests:
        arguments = dict(request["arguments"])
        if "ttl" in arguments:
            arguments["ttl"] = TimeToLive(**arguments["ttl"])
        if hasattr(statestore, "KeyedOptions"):  # a release before 0.2.0
            options = {name: arguments.pop(name) for name in _OPTIONS & arguments.keys()}
            arguments |= {"options": statestore.KeyedOptions(**options)} if options else {}
        rows = request["rows"]
        if isinstance(rows, dict):
            rows = Changes(**rows)
        operator, state = request["operator"], request["state"]
        if request["method"] == "carry":
            checkpoint.carry(operator, state)
            continue
        entry = getattr(checkpoint, request["method"])(operator, state, rows, **arguments)
        digests[f"{operator}/{state}"] = entry.digest
    return digests


def about() -> dict[str, str]:
    """Return the version and the folder of the package."""
    return {
        "version": statestore.__version__,
        "folder": str(Path(statestore.__file__).parent),
    }


def write(
    url: str, requests: list[Mapping[str, Any]], store: Mapping[str, Any], **snapshot: Any
) -> dict[str, Any]:
    """Take one checkpoint with the requested states; ``store`` has the arguments of ``open``."""
    with _open(url, **store).snapshot(**snapshot) as checkpoint:
        done = checkpoint.already_committed
        digests = _write_states(checkpoint, requests)
    return {"id": checkpoint.id, "digests": digests, "already": done}


def begin(url: str, name: str, store: Mapping[str, Any], **snapshot: Any) -> None:
    """Begin a checkpoint under a name, and leave it open."""
    checkpoint = _open(url, **store).snapshot(**snapshot)
    checkpoint.__enter__()
    BEGUN[name] = checkpoint


def finish(name: str, requests: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Write the states of an open checkpoint, and commit it."""
    checkpoint = BEGUN.pop(name)
    try:
        digests = _write_states(checkpoint, requests)
    except BaseException as error:
        checkpoint.__exit__(type(error), error, error.__traceback__)
        raise
    checkpoint.__exit__(None, None, None)
    return {"id": checkpoint.id, "digests": digests}


def checkpoints(url: str) -> tuple[int, ...]:
    """Return the visible checkpoints."""
    return _open(url).checkpoints()


def read(url: str, checkpoint: int | str, parallelism: int, now_ms: int) -> dict[str, Any]:
    """Return all rows of a checkpoint, the digests, and the operator state by subtask."""
    store: Any = _open(url)
    if hasattr(store, "checkpoint"):
        manifest = store.checkpoint(checkpoint).manifest
    else:  # an older release
        manifest = store.manifest(checkpoint)
    restored = store.restore(checkpoint=checkpoint, parallelism=parallelism, now_ms=now_ms)
    found: dict[str, Any] = {"id": manifest.checkpoint_id, "keyed": {}, "digests": {}}
    for entry in manifest.keyed:
        uid, name = entry.state.uid, entry.state.name
        state = restored.keyed(uid, name)
        parts = [state.to_arrow(subtask) for subtask in range(parallelism)]
        found["keyed"][f"{uid}/{name}"] = pa.concat_tables(parts)
        found["digests"][f"{uid}/{name}"] = state.digest
    found["operator"] = {
        f"{entry.state.uid}/{entry.state.name}": [
            restored.operator_state(entry.state.uid, entry.state.name).subtask(subtask)
            for subtask in range(parallelism)
        ]
        for entry in manifest.entries
        if entry not in manifest.keyed
    }
    return found


def look_up(url: str, operator: str, state: str, key: Any, now_ms: int) -> list[dict[str, Any]]:
    """Return the rows of one key."""
    restored = _open(url).restore(parallelism=2, now_ms=now_ms)
    return restored.keyed(operator, state).get(key)


def verify(url: str) -> list[str]:
    """Return the damage of all checkpoints."""
    return [str(one) for one in _open(url).maintenance.verify("all", deep=True).broken]


def compact(url: str, now_ms: int) -> int | None:
    """Fold all layers of changes."""
    done = _open(url).maintenance.compact(everything=True, now_ms=now_ms)
    return done.new_checkpoint_id


def merge(url: str, now_ms: int) -> int | None:
    """Merge layers of changes, without their base."""
    rule = CompactionRule(merge_layers=2, share=1e9, most_share=1e9)
    return _open(url).maintenance.compact(rule=rule, now_ms=now_ms).new_checkpoint_id


def edit(url: str, operator: str, state: str, put: list[Any], delete: list[Any]) -> int | None:
    """Put and delete rows of the newest checkpoint."""
    done = _open(url).maintenance.edit(operator, state, put=put, delete=delete)
    return done.new_checkpoint_id


def purge(url: str, operator: str, key: Any) -> dict[int, int | None]:
    """Purge a key; return the replacement of each replaced checkpoint."""
    maintenance: Any = _open(url).maintenance
    if hasattr(maintenance, "purge"):  # an older release
        done = maintenance.purge(operator, key)
    else:
        done = maintenance.forget(statestore.OperatorKey(operator, key), search=False)
    return {one.checkpoint_id: one.new_checkpoint_id for one in done.replaced}


def forget(url: str, columns: Mapping[str, Any]) -> dict[int, int | None]:
    """Forget a subject in all operators; return the replacement of each replaced checkpoint."""
    done: Any = _open(url).maintenance.forget(columns)
    done = getattr(done, "purged", done)  # an older release
    return {one.checkpoint_id: one.new_checkpoint_id for one in done.replaced}


def is_gone(url: str, operator: str, key: Any) -> bool:
    """Search all files for a key."""
    maintenance: Any = _open(url).maintenance
    if hasattr(maintenance, "find_key"):  # an older release
        return bool(maintenance.find_key(operator, key).is_gone)
    return bool(maintenance.find_subject(statestore.OperatorKey(operator, key)).is_gone)


def rekey(url: str, operator: str, max_parallelism: int) -> int | None:
    """Write all states of an operator with another number of key groups."""
    done = _open(url).maintenance.rekey(operator, max_parallelism=max_parallelism)
    return done.new_checkpoint_id


def expire(url: str, retain: int) -> tuple[int, ...]:
    """Expire all checkpoints but the newest ones; return the visible ones."""
    store = _open(url)
    store.maintenance.expire(retain=retain)
    return store.checkpoints()


def gc(url: str) -> None:
    """Delete all files that nothing references."""
    _open(url).maintenance.gc(minimum_age="0")


def savepoint(url: str, name: str, checkpoint: int) -> int:
    """Keep a checkpoint under a name."""
    return _open(url).maintenance.savepoint(name, checkpoint).checkpoint_id


def delete_savepoint(url: str, name: str) -> bool:
    """Delete a savepoint; return whether it was there."""
    return _open(url).maintenance.delete_savepoint(name) is not None


def savepoints(url: str) -> dict[str, int]:
    """Return the savepoints."""
    found = _open(url).maintenance.savepoints()
    return {one.name: one.checkpoint_id for one in found}


def pin(url: str, checkpoint: int) -> str:
    """Pin a checkpoint for a long time; return the token."""
    return _open(url).maintenance.pin(checkpoint, lease="1000h").token


def unpin(url: str, token: str) -> None:
    """End a pin."""
    _open(url).maintenance.unpin(token)


def pins(url: str) -> dict[str, int]:
    """Return the pins."""
    return {one.token: one.checkpoint_id for one in _open(url).maintenance.pins()}


def copy(url: str, checkpoint: int, to: str, store: Mapping[str, Any]) -> int | None:
    """Copy a checkpoint into another store."""
    done = _open(url).maintenance.copy(checkpoint, _open(to, **store))
    return done.new_checkpoint_id


def fork(url: str, checkpoint: int, to: str) -> int | None:
    """Create a store that shares the files of a checkpoint."""
    maintenance = _open(url).maintenance
    if hasattr(maintenance, "fork"):  # an older release
        done = maintenance.fork(to, checkpoint)
    else:
        done = maintenance.copy(checkpoint, to, linked=True)
    number: int | None = done.new_checkpoint_id
    return number


def repair(url: str) -> None:
    """Rebuild damaged documents."""
    _open(url).maintenance.repair()


ACTIONS: dict[str, Callable[..., Any]] = {
    action.__name__: action
    for action in (
        *(about, write, begin, finish, checkpoints, read, look_up, verify, compact, merge, edit),
        *(purge, forget, is_gone, rekey, expire, gc, savepoint, delete_savepoint, savepoints),
        *(pin, unpin, pins, copy, fork, repair),
    )
}


def serve(connection: Connection) -> None:
    """Answer requests until the other end is closed.

    An answer is ``("done", value)``, ``("refused", class names, message)`` for the store's own
    errors, or ``("crashed", traceback)`` for any other error.
    """
    while True:
        try:
            action, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, ...] = "done", ACTIONS[action](**arguments)
        except StateStoreError as error:
            names = [one.__name__ for one in type(error).__mro__]
            answer = "refused", names, str(error)
        except Exception:  # noqa: BLE001 - the peer reports it
            answer = "crashed", traceback.format_exc()
        connection.send(answer)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
