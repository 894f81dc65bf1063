"""Select the states that an export writes; name those that it leaves out, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from statestore.errors import StateNotFoundError
from statestore.format.left_out import LeftOutState, left_out_text
from statestore.format.manifest import Manifest
from statestore.interop.flink.exporting.export_types import LeftOut
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.read.operator_state import SOURCE_READER_STATE


def list_left_out(
    known: Collection[tuple[str, str]],
    unwanted: Collection[tuple[str, str]],
    selected: Collection[str],
    missing: Sequence[LeftOutState],
) -> Iterator[LeftOut]:
    """Yield the states that are not written: unwanted, not selected, or missing in the store."""
    for uid, name in sorted(known):
        if (uid, name) in unwanted or uid not in selected:
            reason = "as requested" if (uid, name) in unwanted else "not selected"
            yield LeftOut(uid, name, reason)
    for state in missing:
        if (state.operator, state.part) not in unwanted:
            yield LeftOut(state.operator, state.part, state.reason)


def select_carried(
    operators: Sequence[LeftOutState], names: Collection[str], checkpoint_id: int
) -> tuple[LeftOutState, ...]:
    """Return the operators to copy; StateNotFoundError for a name that matches none of them."""
    for name in names:
        if not any(operator.is_named(name) for operator in operators):
            raise StateNotFoundError(
                f"no operator {name!r} can be carried unchanged from an imported savepoint; "
                f"checkpoint {checkpoint_id} lacks these whole operators: "
                f"{left_out_text(operators) or 'none'}"
            )
    return tuple(operator for operator in operators if any(map(operator.is_named, names)))


def select_unwanted(
    manifest: Manifest,
    known: set[tuple[str, str]],
    missing: Sequence[LeftOutState],
    named: Collection[str],
) -> set[tuple[str, str]]:
    """Return the states of the checkpoint that the user asked to leave out.

    The name of an already missing state selects nothing here. Raises StateNotFoundError for a name
    that matches neither a state of the checkpoint nor a missing state.
    """
    unwanted = set()
    for text in named:
        matching = {
            (uid, name)
            for uid, name in known
            if text in (uid, f"{uid}/{name}", manifest.operators.id_of(uid))
        }
        if not matching and not any(state.is_named(text) for state in missing):
            stored = ", ".join(f"{uid}/{name}" for uid, name in sorted(known))
            raise StateNotFoundError(
                f"{text!r} cannot be left out because it does not exist: name an operator or "
                f"OPERATOR/STATE. Checkpoint {manifest.checkpoint_id} lacks "
                f"{left_out_text(missing) or 'nothing of its source'}; it has {stored}"
            )
        unwanted |= matching
    return unwanted


def find_views(known: set[tuple[str, str]], record: SavepointRecord) -> list[LeftOut]:
    """Return the offset states that an import added; their offsets are written to the splits."""
    splits = {state.operator for state in record.states if state.name == SOURCE_READER_STATE}
    imported = {(state.operator, state.state) for state in record.states}
    return [
        LeftOut(
            uid,
            name,
            f"the offsets are written into the splits of {SOURCE_READER_STATE}",
            is_written_elsewhere=True,
        )
        for uid, name in sorted(known - imported)
        if uid in splits and name.startswith("offsets")
    ]


def refuse_unknown(uids: Sequence[str], operators: Collection[str] | None) -> None:
    """Raise StateNotFoundError for an operator that the checkpoint does not have."""
    for uid in operators or ():
        if uid not in uids:
            raise StateNotFoundError(
                f"the checkpoint has no operator {uid!r}; it has {', '.join(uids)}"
            )
