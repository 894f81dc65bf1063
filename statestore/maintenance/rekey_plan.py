"""Plan a rekey: the new form of an operator's keyed states, and of the job graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from statestore.errors import (
    InvalidArgumentError,
    ParallelismError,
    StateNotFoundError,
    UnsupportedTypeError,
)
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.state import KeyedState
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.operators import job_vertices, label_of, operator_ids
from statestore.keys.arrow_types import check_key_types
from statestore.keys.groups import effective_max_parallelism
from statestore.keys.hashing import HASH_SCHEMES
from statestore.rows.column_types import arrow_schema


def check_request(
    uid: str,
    name: str | None,
    key: Sequence[str] | None,
    hash_scheme: str | None,
    max_parallelism: int | None,
) -> None:
    """Refuse an empty request, an unknown hash scheme, and a key without the name of its state."""
    if (max_parallelism, key, hash_scheme) == (None, None, None):
        raise InvalidArgumentError("pass what to change: max_parallelism, key or hash_scheme")
    if key is not None and name is None:
        raise InvalidArgumentError(
            f"a new key applies to only one state: pass the name of the state of operator {uid!r}"
        )
    if hash_scheme is not None and hash_scheme not in HASH_SCHEMES:
        raise InvalidArgumentError(
            f"unknown hash scheme {hash_scheme!r}; the hash schemes are {', '.join(HASH_SCHEMES)}"
        )


def select_entries(manifest: Manifest, uid: str, name: str | None) -> list[KeyedEntry]:
    """Return the keyed states of an operator, or the one of a name.

    Raises StateNotFoundError, which lists the existing states.
    """
    if name is not None:
        return [manifest.keyed_entry(uid, name)]
    entries = [entry for entry in manifest.keyed if entry.state.uid == uid]
    if not entries:
        known = ", ".join(sorted({repr(entry.state.uid) for entry in manifest.keyed})) or "none"
        raise StateNotFoundError(
            f"checkpoint {manifest.checkpoint_id} has no keyed state of operator {uid!r}; "
            f"operators with keyed state are {known}"
        )
    return entries


def requested_state(
    manifest: Manifest,
    entry: KeyedEntry,
    new_key: tuple[str, ...] | None,
    hash_scheme: str | None,
    max_parallelism: int | None,
) -> KeyedState:
    """Return the state in its new form: the new key first; former key columns become values.

    None leaves a property unchanged.

    Raises InvalidArgumentError, UnsupportedTypeError or ParallelismError if this is impossible.
    """
    old = entry.state
    key = old.key if new_key is None else new_key
    for name in key:
        if name not in old.schema.names:
            raise InvalidArgumentError(
                f"{old} has no column {name!r} for its key; it has ({old.schema})"
            )
    first = (*key, *old.namespace, *old.entry)
    rest = [name for name in old.schema.names if name not in first]
    scheme = old.hash_scheme if hash_scheme is None else hash_scheme
    return replace(
        old,
        schema=old.schema.select((*dict.fromkeys(first), *rest)),
        key=key,
        key_types=_key_types(old, key, scheme),
        hash_scheme=scheme,
        max_parallelism=_max_parallelism(manifest, old, max_parallelism),
    )


def _key_types(old: KeyedState, key: tuple[str, ...], scheme: str) -> tuple[str, ...]:
    """Return the types of the key columns for hashing.

    A column that was key in the same hash scheme keeps its stored type, which may differ from the
    column's type.
    """
    known = dict(zip(old.key, old.key_types, strict=True)) if scheme == old.hash_scheme else {}
    columns = arrow_schema(old.schema)
    try:
        fields = [columns.field(name) for name in key]
        return check_key_types(fields, scheme, [known.get(name) for name in key])
    except UnsupportedTypeError as error:
        error.add_note(f"while rekeying {old} by ({', '.join(key)})")
        raise


def _max_parallelism(manifest: Manifest, old: KeyedState, wanted: int | None) -> int:
    if wanted is None:
        return old.max_parallelism
    try:
        parallelism = manifest.operators.parallelism_of(old.uid)
        return effective_max_parallelism(None, parallelism, wanted)
    except (InvalidArgumentError, ParallelismError) as error:
        error.add_note(
            f"operator {old.uid!r} has parallelism {manifest.operators.parallelism_of(old.uid)} in "
            f"checkpoint {manifest.checkpoint_id}, and a rekey keeps the parallelism"
        )
        raise


def refuse_mixed(
    manifest: Manifest, entries: Sequence[KeyedEntry], states: Sequence[KeyedState]
) -> None:
    """Raise InvalidArgumentError if another state of the operator keeps another max parallelism."""
    chosen = {entry.state.name for entry in entries}
    for entry in manifest.keyed:
        other = entry.state
        if other.uid != states[0].uid or other.name in chosen:
            continue
        if other.max_parallelism != states[0].max_parallelism:
            raise InvalidArgumentError(
                f"{other} has max parallelism {other.max_parallelism}, and all states of an "
                "operator must have the same: omit the name to rekey all of them"
            )


def requested_graph(manifest: Manifest, state: KeyedState) -> JobGraph | None:
    """Return the job graph with the state's max parallelism, if the operator had another one.

    The operators of a chain share one max parallelism, so the whole chain gets it. Raises
    InvalidArgumentError if another operator of the chain has keyed state, which would not be
    rekeyed.
    """
    graph, most = manifest.graph, state.max_parallelism
    if graph is None or manifest.operators.max_parallelism_of(state.uid) in (None, most):
        return graph
    own = next(node.name for node in graph.nodes if label_of(node) == state.uid)
    vertices = job_vertices(graph, operator_ids(graph))
    chain = next(vertex.nodes for vertex in vertices if own in vertex.nodes)
    stateful = {entry.state.uid for entry in manifest.keyed}
    for node in graph.nodes:
        if node.name in chain and node.name != own and label_of(node) in stateful:
            raise InvalidArgumentError(
                f"operators {state.uid!r} and {label_of(node)!r} are in one chain and both "
                "have keyed state, but a chain has only one max parallelism; break the chain "
                "in the job's graph and take a snapshot first"
            )
    return replace(
        graph,
        nodes=tuple(
            replace(node, max_parallelism=most)
            if node.name in chain and node.max_parallelism is not None
            else node
            for node in graph.nodes
        ),
    )
