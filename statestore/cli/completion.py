"""Complete operators, states, checkpoints and savepoints in a shell, from the store.

Click calls these functions while the user types. The store is named by ``--store``, a settings file
or the environment. A shell cannot show an error, so an unreadable store completes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from statestore.errors import NotFoundError, StateStoreError

if TYPE_CHECKING:
    from statestore.cli.command import Invocation
    from statestore.format.manifest import Manifest
    from statestore.store import StateStore

__all__ = [
    "complete_checkpoint",
    "complete_operator",
    "complete_savepoint",
    "complete_state",
]

LATEST = "latest"
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completer(candidates: Callable[[StateStore, click.Context], Iterable[str]]) -> Completer:
    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        invocation: Invocation = context.obj
        try:
            names = [*candidates(invocation.store(), context)]
        except (StateStoreError, click.UsageError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def _checkpoints(store: StateStore, context: click.Context) -> list[str]:
    ids = sorted(store.checkpoints(), reverse=True)
    return [LATEST, *_savepoints(store, context), *map(str, ids)]


def _savepoints(store: StateStore, context: click.Context) -> list[str]:
    return [savepoint.name for savepoint in store.maintenance.savepoints()]


def _operators(store: StateStore, context: click.Context) -> list[str]:
    return [*_manifest(store, context).uids]


def _states(store: StateStore, context: click.Context) -> list[str]:
    operator = context.params.get("operator")
    states = [entry.state for entry in _manifest(store, context).entries]
    return sorted({state.name for state in states if operator in (None, state.uid)})


def _manifest(store: StateStore, context: click.Context) -> Manifest:
    """Return the checkpoint that an option has named so far, or the newest one.

    Click parses arguments last, so a checkpoint given as an argument is not known yet.
    """
    try:
        return store.checkpoint(context.params.get("checkpoint") or LATEST).manifest
    except NotFoundError:
        return store.checkpoint(LATEST).manifest


complete_checkpoint = _completer(_checkpoints)
"""Complete ``latest``, the names of savepoints, and the numbers of checkpoints, newest first."""

complete_savepoint = _completer(_savepoints)
"""Complete the names of savepoints."""

complete_operator = _completer(_operators)
"""Complete the operators of the checkpoint."""

complete_state = _completer(_states)
"""Complete the states of the checkpoint, of the operator if one is named."""
