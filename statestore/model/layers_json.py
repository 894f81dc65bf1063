"""The layers of changes of a keyed state as a manifest has them, and back."""

from __future__ import annotations

from typing import Any

from statestore.keys.groups import KeyGroupRange
from statestore.model.changes import change_state
from statestore.model.digest import digest_text
from statestore.model.document import Node
from statestore.model.files_json import keyed_files_json, keyed_handles
from statestore.model.manifest import KeyedEntry, Layer, TableRef
from statestore.model.names_json import refuse_foreign_folder, refuse_other_files
from statestore.model.state import KeyedState

__all__ = ["layers_json", "layers_of"]


def layers_json(entry: KeyedEntry) -> dict[str, Any]:
    """Return the member ``changes`` of a state, nothing of one without layers."""
    if not entry.layers:
        return {}
    return {
        "changes": [
            {
                "checkpoint": layer.checkpoint_id,
                "depth": layer.depth,
                "live": [[one.first, one.last] for one in layer.live],
                "path": layer.entry.table.path,
                "rows": layer.entry.rows,
                "digest": digest_text(layer.entry.digest),
                "files": keyed_files_json(layer.entry.handles, packed=True),
            }
            for layer in entry.layers
        ]
    }


def layers_of(node: Node, state: KeyedState, *, relabelled: bool) -> tuple[Layer, ...]:
    """Return the layers of a state; MalformedManifestError, or another error for the caller to
    place. ``relabelled`` as of :func:`statestore.model.names_json.refuse_foreign_folder`.
    """
    changes = node.maybe("changes")
    if changes is None:
        return ()
    stored = change_state(state)
    layers = []
    for item in changes.items():
        path = item.at("path")
        refuse_foreign_folder(path, "changes", state.uid, state.name, relabelled=relabelled)
        layers.append(_layer(item, stored))
    return tuple(layers)


def _layer(node: Node, stored: KeyedState) -> Layer:
    handles = keyed_handles(node.at("files"), indexed=True, packed=True)
    refuse_other_files(node.at("files"), "ranged")
    entry = KeyedEntry(stored, TableRef("parquet", node.at("path").text()), handles)
    if node.at("rows").number() != entry.rows:
        raise node.at("rows").fail(f"its files add up to {entry.rows}")
    if node.at("digest").text() != digest_text(entry.digest):
        raise node.at("digest").fail(f"its files add up to {digest_text(entry.digest)}")
    live = tuple(KeyGroupRange(*item.numbers()) for item in node.at("live").items())
    _refuse_disorder(node.at("live"), live, stored.max_parallelism)
    files = tuple(handle.key_groups for handle in handles)
    _refuse_disorder(node.at("files"), files, stored.max_parallelism)
    checkpoint_id, depth = node.at("checkpoint").number(), node.at("depth").number()
    return Layer(entry, checkpoint_id, depth, live)


def _refuse_disorder(node: Node, ranges: tuple[KeyGroupRange, ...], max_parallelism: int) -> None:
    """Refuse key groups that come twice, out of order, or are none of the state."""
    next_free = 0
    for one in ranges:
        if not next_free <= one.first <= one.last < max_parallelism:
            raise node.fail(
                f"the key groups {one} come twice, out of order, or are not below max parallelism "
                f"{max_parallelism}"
            )
        next_free = one.last + 1
