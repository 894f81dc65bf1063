"""What a manifest says of the command that made its checkpoint, held to what commands say.

``purge`` finishes by it what an earlier run left: it moves savepoints, and gives a checkpoint up.
"""

from __future__ import annotations

from typing import Any

from statestore.model.document import Node
from statestore.model.hold import is_savepoint_name

__all__ = ["origin_from_json"]

_FROM_ELSEWHERE = ("copy", "fork")


def origin_from_json(node: Node, checkpoint_id: int) -> dict[str, Any]:
    """Return the origin of checkpoint ``checkpoint_id``; MalformedManifestError with the place for
    one that no command says. Members that nobody acts upon are not looked at.
    """
    command, old = node.at("command").text(), node.at("checkpoint")
    if command not in _FROM_ELSEWHERE and not 0 < old.number() < checkpoint_id:
        raise old.fail(f"checkpoint {checkpoint_id} cannot have been made of {old.number()}")
    savepoints = node.maybe("savepoints")
    for one in savepoints.items() if savepoints else ():
        one.at("created_at_ms").time()
        if not is_savepoint_name(one.at("name").text()):
            raise one.at("name").fail(f"no savepoint is called {one.at('name').text()!r}")
    expired = node.maybe("expired")
    if expired is not None and not isinstance(expired.value, bool):
        raise expired.fail(f"it is true or false, not {expired.value!r}")
    return node.object()
