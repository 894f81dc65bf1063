"""A rehearsal: the old and the new version of a job on one state and the same input, compared.

A rehearsal has a folder of its own, and writes nowhere else::

    rehearsal.json   what is rehearsed
    base/            the imported state of a query that has no store
    old/, new/       a version: its store, Spark's checkpoint location, its output, and the rows of
                     its output as a state

The job's store is only read. On one file system a version's store has hard links to the files of
the checkpoint. So no garbage collection can remove them during the rehearsal, and no hold is
written. On another file system, and from a bucket, the files are copied first. If a collection
removes one of them before that, the copy fails with its name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from glob import escape
from pathlib import Path

from statestore.catalog.catalog import Checkpoint
from statestore.errors import InvalidArgumentError, StateStoreError
from statestore.interop.tables.source_table import SourceTable
from statestore.interop.tables.table_formats import open_query
from statestore.maintenance.diff import DEFAULT_EXAMPLES
from statestore.maintenance.diff_report import CheckpointDifference
from statestore.maintenance.diff_rule import ALL, DiffRule
from statestore.restore.duck import quote_identifier
from statestore.restore.row_files import output_file
from statestore.store import StateStore

OLD, NEW, BASE = "old", "new", "base"
STORE, LOCATION, OUTPUT = "store", "location", "output"
OUTPUT_BATCH, OUTPUT_ROW = "rehearsal_batch", "rehearsal_row"
"""The columns that number rows of the output: the micro-batch, and the row of a key in it."""

_DOCUMENT, _ROWS, _READY, _DONE = "rehearsal.json", "rows", "ready", "done"


@dataclass(frozen=True, kw_only=True)
class RehearsalPlan:
    """What a folder rehearses.

    Attributes:
        engine: ``store``, ``spark`` or ``flink``: where the job keeps its state.
        source: The job's store, or the checkpoint location of a Spark query.
        base: The checkpoint of the store, or the micro-batch of the location.
        made_by: The writer of the checkpoint; empty for a micro-batch.
        query: The query's id; empty for Flink.
        batch: The micro-batch with which the state ends; 0 for Flink.
        old: The old version, or the job's own later state that is compared.
        new: The new version.
        batches: The most micro-batches to run; None for all that are available.
    """

    engine: str
    source: str
    base: int
    made_by: str
    query: str
    batch: int
    old: str
    new: str
    batches: int | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How the results of two versions are compared.

    Attributes:
        rule: Which differences between rows count.
        operator: The operator to compare; by default all, and the output.
        state: The state to compare; by default all of the operator.
        output_key: The columns that identify the keys of the output.
        examples: The most examples of each state.
        left_out: The operator that records an import, which no version computes.
    """

    rule: DiffRule = ALL
    operator: str | None = None
    state: str | None = None
    output_key: Sequence[str] = ()
    examples: int = DEFAULT_EXAMPLES
    left_out: str | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user wants to rehearse.

    Attributes:
        folder: The folder of the rehearsal.
        base: The checkpoint or micro-batch to begin with, by default the newest.
        old: The old version: a job, or the folder of its savepoint. None to compare with the
            job's own later state.
        new: The new version.
        against: The job's later checkpoint or micro-batch. By default the newest, or with an old
            version all events that it finds.
        until: Where sources end, as JSON by the source's name or number.
        comparison: How the results are compared.
        location: The job's checkpoint location, empty for Flink.
        batches: The most micro-batches to run.
        flink: The version of Flink, empty for Spark.
        savepoint: An exported savepoint to begin with. By default the rehearsal exports one.
    """

    folder: Path
    base: str | None
    old: str | None
    new: str
    against: str | None
    comparison: Comparison
    location: str = ""
    batches: int | None = None
    until: Mapping[str, str] = field(default_factory=dict)
    flink: str = ""
    savepoint: Path | None = None

    def old_label(self, version: str) -> str:
        """Return what is compared with the new version, and up to where it runs."""
        ends = [f"{source}={end}" for source, end in self.until.items()]
        until = ", ".join([self.against] if self.against else ends)
        return f"{version}, until {until}" if until else version


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The result of a rehearsal.

    ``batches`` are the first and the last micro-batch, None for Flink. ``difference`` has the old
    version as ``a`` and the new one as ``b``, and the output as a state of the sort ``output``.
    ``output_unknown`` is the reason why there is none; None if no version has an output.
    """

    plan: RehearsalPlan
    folder: str
    batches: tuple[int, int] | None
    difference: CheckpointDifference
    output_unknown: str | None


def stored_plan(folder: Path) -> RehearsalPlan | None:
    """Return the plan of a folder, None if it has none; InvalidArgumentError for a broken one."""
    file = folder / _DOCUMENT
    try:
        return RehearsalPlan(**json.loads(file.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"{file} is not the document of a rehearsal: {error}. Name another folder"
        ) from error


def begin(folder: Path, plan: RehearsalPlan) -> None:
    """Begin the rehearsal of a folder, or continue it; a changed new version runs again.

    Raises:
        InvalidArgumentError: If the folder has another rehearsal, or other files.
    """
    stored = stored_plan(folder)
    if stored is None and folder.exists() and any(folder.iterdir()):
        raise InvalidArgumentError(
            f"{folder} is not empty and has no rehearsal: name a folder that does not exist"
        )
    if stored is not None:
        before, now = asdict(stored), asdict(plan)
        changes = [name for name in now if before[name] != now[name]]
        if {*changes} - {"new"}:
            texts = (
                f"{name.replace('_', ' ')} {before[name]}, not {now[name]}" for name in changes
            )
            raise InvalidArgumentError(
                f"{folder} has another rehearsal: {'; '.join(texts)}. Remove it with 'statestore "
                f"rehearse --discard --to {folder}', or name another folder"
            )
        if changes:
            remove(folder / NEW)
    folder.mkdir(parents=True, exist_ok=True)
    with output_file(folder / _DOCUMENT, replace=True) as file:
        file.write(json.dumps(asdict(plan), indent=2).encode())


def remove(place: Path) -> None:
    """Remove a folder of a rehearsal, if it exists."""
    if place.exists():
        shutil.rmtree(place)


def prepare_once(side: Path, prepare: Callable[[], object]) -> None:
    """Prepare the folder of a version; after a kill, again from nothing.

    If the first version cannot be prepared, the rehearsal leaves nothing.
    """
    if (side / _READY).exists():
        return
    remove(side)
    side.mkdir(parents=True)
    try:
        prepare()
    except StateStoreError:
        if not any((side.parent / name / _READY).exists() for name in (OLD, NEW, BASE)):
            discard(side.parent)
        raise
    (side / _READY).touch()


def finished_batch(side: Path) -> int | None:
    """Return the last micro-batch of a version that has run; None if it did not finish."""
    done = side / _DONE
    return int(done.read_text("utf-8")) if done.exists() else None


def finish(side: Path, batch: int) -> None:
    """Record that a version has run up to a micro-batch."""
    with output_file(side / _DONE, replace=True) as file:
        file.write(str(batch).encode())


def fork(base: Checkpoint, side: Path, store: StateStore) -> None:
    """Make the store of a version from a checkpoint of the job's store, where nothing changes."""
    store.maintenance.copy(base, str(side / STORE), linked=True, touch=False)


def compare(
    sides: tuple[Checkpoint, Checkpoint],
    comparison: Comparison,
    outputs: tuple[Path, Path] | None,
) -> tuple[CheckpointDifference, str | None]:
    """Compare the states of two versions, and their outputs.

    Args:
        sides: The checkpoints of the old and the new version.
        comparison: How they are compared.
        outputs: The folders of both versions; None if the old one's output is not known.

    Returns:
        The differences, and the reason why the outputs were not compared.

    Raises:
        InvalidArgumentError: For a rule whose columns no state and no output has.
        StateStoreError: If a side cannot be read.
    """
    rows, unknown = _output_checkpoints(outputs, comparison)
    comparison.rule.check(
        entry.state
        for checkpoint in (*sides, *(rows or ()))
        for entry in checkpoint.manifest.keyed
        if entry.state.uid != comparison.left_out
        and comparison.operator in (None, entry.state.uid)
        and comparison.state in (None, entry.state.name)
    )
    found = _diff(sides, comparison)
    states = [state for state in found.states if state.operator != comparison.left_out]
    if rows is not None:
        states += [replace(state, sort=OUTPUT) for state in _diff(rows, comparison).states]
    return replace(found, states=tuple(states)), unknown


def _diff(sides: tuple[Checkpoint, Checkpoint], comparison: Comparison) -> CheckpointDifference:
    old, new = sides
    return StateStore.open(old.storage).inspect.diff(
        old,
        new,
        operator=comparison.operator,
        state=comparison.state,
        keys=comparison.examples,
        rule=comparison.rule,
    )


def _output_checkpoints(
    outputs: tuple[Path, Path] | None, comparison: Comparison
) -> tuple[tuple[Checkpoint, Checkpoint] | None, str | None]:
    """Return the outputs of both versions as states, or the reason why there are none."""
    if comparison.operator is not None or comparison.state is not None:
        return None, "only some states are compared"
    if outputs is None:
        return None, "the job wrote its output to its sink: pass --old to run the old version, too"
    written = [side for side in outputs if any((side / OUTPUT).glob("*.parquet"))]
    if not written:
        return None, None
    try:
        tables = _numbered_rows(written, comparison)
        names = [name for name in tables[0].schema.names if name != OUTPUT_ROW]
        lacking = [n for n in comparison.output_key if any(n not in t.schema.names for t in tables)]
        if lacking or not comparison.output_key:
            problem = f"it has no column {lacking[0]!r}" if lacking else "its key is not known"
            return None, f"{problem}: pass --output-key, one of {', '.join(names[:-1])}"
        if len(written) == 1:  # the other version has no output
            empty = SourceTable("no output", tables[0].schema, lambda: iter(()))
            tables.insert(outputs.index(written[0]) ^ 1, empty)
        key = list(comparison.output_key)
        old, new = (_as_state(*pair, key) for pair in zip(outputs, tables, strict=True))
    except StateStoreError as error:  # such as a type that cannot be a key
        return None, str(error)
    return (old, new), None


def _numbered_rows(sides: Sequence[Path], comparison: Comparison) -> list[SourceTable]:
    """Return the output of versions, with the rows of a key in each micro-batch numbered.

    The order of columns has no meaning in an output. Rows are numbered in the order of the columns
    that must be equal, so that a difference in another one does not move the numbers.
    """
    places = [escape(str(side / OUTPUT)).replace("'", "''") for side in sides]
    files = [f"read_parquet('{place}/*.parquet', union_by_name = true)" for place in places]
    names = [open_query(f"SELECT * FROM {each}").schema.names for each in files]
    common = {*names[0]}.intersection(*names)
    inexact = {*comparison.rule.ignore, *comparison.rule.tolerance}
    tables = []
    for rows, own in zip(files, names, strict=True):
        parts = [name for name in (*comparison.output_key, OUTPUT_BATCH) if name in own]
        rest = sorted({*own} - {*parts}, key=lambda n: (n not in common, n in inexact, n))
        order = f"ORDER BY {_columns(rest)}" if rest else ""
        number = f"row_number() OVER (PARTITION BY {_columns(parts)} {order})"
        chosen = _columns([*sorted({*own} - {OUTPUT_BATCH}), OUTPUT_BATCH])
        tables.append(open_query(f"SELECT {chosen}, {number} AS {OUTPUT_ROW} FROM {rows}"))
    return tables


def _columns(names: Sequence[str]) -> str:
    return ", ".join(map(quote_identifier, names))


def _as_state(side: Path, rows: SourceTable, key: Sequence[str]) -> Checkpoint:
    remove(side / _ROWS)
    store = StateStore.open(str(side / _ROWS), table_format="parquet")
    store.bootstrap(
        *(OUTPUT, "rows", rows.batches()),
        key=key,
        entry=[OUTPUT_BATCH, OUTPUT_ROW],
        kind="map",
        hash_scheme="flink-sql",
    )
    return store.checkpoint()


@dataclass(frozen=True, kw_only=True)
class PromotedRehearsal:
    """The state of the new version as the job's next checkpoint.

    ``location`` is the checkpoint location with which the new version continues. ``output_files``
    are the files of output that only the rehearsal has.
    """

    store: str
    checkpoint_id: int
    new_checkpoint_id: int
    found: bool
    location: str
    output: str
    output_files: int


def promote(store: StateStore, folder: Path) -> PromotedRehearsal:
    """Make the state of the new version the next checkpoint of the job's store.

    Args:
        store: The job's store.
        folder: The rehearsal's folder.

    Raises:
        InvalidArgumentError: If the rehearsal is not complete, has no store, or is of another
            store. Also if the store has a newer checkpoint than the rehearsal began with.
        CommitConflictError: If the store gets such a checkpoint at the same time.
        StateStoreError: If a file cannot be read or written.
    """
    plan = _plan_of(folder)
    if plan.engine != "store":
        raise InvalidArgumentError(
            f"{folder} rehearses state of {plan.engine}, which has no store: start the new version "
            f"with {folder / NEW / LOCATION if plan.engine == 'spark' else 'its savepoint'}, or "
            "export the production state again when the job has stopped"
        )
    side = folder / NEW
    if finished_batch(side) is None:
        raise InvalidArgumentError(
            f"the rehearsal of {folder} is not complete: run it again, and it continues"
        )
    if plan.source != store.url:
        raise InvalidArgumentError(f"{folder} rehearses {plan.source}, not {store.url}")
    rehearsed = StateStore.open(str(side / STORE))
    newest = store.checkpoint().manifest
    is_promoted = (newest.origin or {}).get("store") == rehearsed.checkpoint().manifest.store_id
    if not is_promoted and (newest.checkpoint_id, newest.writer.token) != (plan.base, plan.made_by):
        raise InvalidArgumentError(
            f"{store.url} has moved: its newest checkpoint is {newest.checkpoint_id}, and the "
            f"rehearsal began with {plan.base}. Later events would count for nothing. Stop "
            "the job, rehearse from the newest checkpoint, and promote that; or deploy the new "
            "version, which continues by itself"
        )
    copied = rehearsed.maintenance.copy("latest", store, after=plan.base)
    assert copied.new_checkpoint_id is not None, "this is no dry run"
    return PromotedRehearsal(
        store=store.url,
        checkpoint_id=plan.base,
        new_checkpoint_id=copied.new_checkpoint_id,
        found=copied.found,
        location=str(side / LOCATION),
        output=str(side / OUTPUT),
        output_files=len([*(side / OUTPUT).glob("*.parquet")]),
    )


@dataclass(frozen=True, kw_only=True)
class DiscardedRehearsal:
    """A rehearsal whose files were removed."""

    folder: str
    files: int
    size_bytes: int


def discard(folder: Path) -> DiscardedRehearsal:
    """Remove all that a rehearsal wrote. Files that it shares with a store stay there.

    Raises:
        InvalidArgumentError: If the folder has no rehearsal.
    """
    _plan_of(folder)
    own = [folder / name for name in (OLD, NEW, BASE)]
    files = [file for place in own for file in place.rglob("*") if file.is_file()]
    size_bytes = sum(file.stat().st_size for file in files)
    for place in own:
        remove(place)
    (folder / _DOCUMENT).unlink()  # last, so that a killed removal can be repeated
    if not any(folder.iterdir()):
        folder.rmdir()
    return DiscardedRehearsal(folder=str(folder), files=len(files) + 1, size_bytes=size_bytes)


def _plan_of(folder: Path) -> RehearsalPlan:
    plan = stored_plan(folder)
    if plan is None:
        raise InvalidArgumentError(f"{folder} has no rehearsal: name the folder of one with --to")
    return plan
