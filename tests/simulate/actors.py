"""The actors of a simulated world: each is a process that does one thing, as a job or a user would.

An actor tells the checker its intent before a commit, and the store's response after it. The
store's errors are valid responses; the checker decides if they are true. Any other error is a
defect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from statestore import Changes
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    CorruptionError,
    InvalidArgumentError,
    LateCommitError,
    LeftOutStateError,
    StateNotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.jobgraph import JobGraph
from statestore.snapshot.writer import CheckpointWriter
from statestore.store import StateStore
from tests.simulate.documents import COUNT, KEY, OFFSETS, TOTALS, Checkpoint, Others, Rows
from tests.simulate.history import Commit
from tests.simulate.scheduler import EPOCH_MS, HOUR_MS, Task
from tests.simulate.world import World

__all__ = ["NAME", "UID", "Actor", "Run", "label_of", "put", "row", "take"]

UID, NAME = "u", "s"
READING = ("gc", "savepoint", "unsave", "reader", "watch", "compaction", "export", "person")


@dataclass(frozen=True, order=True)
class Actor:
    """A command of a plan: its start time, its clock skew and its arguments.

    ``release`` is the version of the release that runs it; empty for this tree.
    """

    verb: str
    name: str
    hours: float = 0.0
    skew_ms: int = 0
    store: str = "a"
    options: tuple[tuple[str, Any], ...] = ()
    release: str = ""

    def option(self, name: str, default: Any) -> Any:
        """Return an argument."""
        return dict(self.options).get(name, default)

    def __str__(self) -> str:
        told = "".join(f" {name}={value}" for name, value in self.options)
        clock = f", clock off by {self.skew_ms} ms" if self.skew_ms else ""
        release = f" of release {self.release}" if self.release else ""
        return (
            f"{self.name}{release}: {self.verb} on {self.store}{told} from hour "
            f"{self.hours:g}{clock}"
        )


def row(key: str) -> dict[str, Any]:
    """Return a row, which may count only once."""
    return {KEY: key, COUNT: 1}


def graph_of(label: str) -> JobGraph:
    """Return a job graph whose stateful operator has no uid: ``label`` is only its name."""
    return JobGraph.from_toml(
        'job.parallelism=1\noperator=[{name="source", uid="source"},'
        f'{{name="{label}", inputs=[{{from="source", partitioner="hash"}}]}}]'
    )


def label_of(checkpoint: Checkpoint | None) -> str:
    """Return the label of the state in a checkpoint."""
    return (checkpoint and checkpoint.label) or UID


def take(
    run: Run,
    store: StateStore,
    where: str,
    keys: tuple[str, ...],
    *,
    how: str = "full",
    checkpoint_id: int | None = None,
    batch: tuple[str, int] | None = None,
    rest: bool = False,
    label: str = UID,
    several: bool = False,
) -> str | None:
    """Take a checkpoint that adds rows to the newest checkpoint's rows; return the writer's token.

    With ``several`` it also has a keyed state whose rows change and go, and list state.
    With ``rest`` it carries all other states of the newest, such as a query's progress. If
    ``label`` differs from the uid, the state belongs to an operator without uid that has this name.
    Returns None if the store reports that it has the ``batch`` already; the rows are then in the
    newest checkpoint.
    """
    run.world.writing += 1
    graph = None if label == UID else graph_of(label)
    log = run.world.log
    called = log.now()
    try:
        made = store.snapshot(
            parallelism=2 if several else 1, graph=graph, checkpoint_id=checkpoint_id, batch=batch
        )
        if made.already_committed:
            log.has_read(where, called, made.id, made.manifest.writer.token)
            run.world.checker.counted(where, list(keys))
            return None
        newest = run.world.checker.latest(where)
        return put(run, made, where, keys, newest, how=how, rest=rest, label=label, several=several)
    finally:
        run.world.writing -= 1


def put(
    run: Run,
    made: CheckpointWriter,
    where: str,
    keys: tuple[str, ...],
    newest: Checkpoint | None,
    *,
    how: str,
    rest: bool,
    label: str = UID,
    several: bool = False,
) -> str | None:
    """Write a checkpoint that was begun while ``newest`` was the newest; as :func:`take`."""
    with run.world.log.committing(where) as told:
        return _put(
            run,
            made,
            where,
            keys,
            newest,
            told,
            how=how,
            rest=rest,
            label=label,
            several=several,
        )


def _put(
    run: Run,
    made: CheckpointWriter,
    where: str,
    keys: tuple[str, ...],
    newest: Checkpoint | None,
    told: Commit,
    *,
    how: str,
    rest: bool,
    label: str,
    several: bool,
) -> str | None:
    seen, token = run.world.checker.seen(where), None
    rows: Rows = {**((newest and newest.rows) or {}), **{key: row(key) for key in keys}}
    try:
        with made as checkpoint:
            number, writer = checkpoint.planned
            token = writer.token
            run.world.log.planned(told, number, token)
            seen.meant[token] = rows
            if newest is None or how == "full":
                groups = 2 if newest is None else None
                checkpoint.write_keyed(
                    label, NAME, [*rows.values()], key=KEY, max_parallelism=groups
                )
            else:
                if how == "against":
                    checkpoint.write_changes_against(
                        label, NAME, [*rows.values()], base=newest.number, key=KEY
                    )
                else:
                    checkpoint.write_changes(
                        label, NAME, [row(key) for key in keys], base=newest.number, key=KEY
                    )
            others = newest.others if newest is not None and rest else {}
            if several:
                others = _write_others(checkpoint, label, number, newest, how)
            seen.meant_others[token] = others
            if rest and newest is not None:
                checkpoint.carry_rest()
    except LateCommitError:
        told.outcome = "done"
        raise  # the newest checkpoint may or may not have the rows
    except CommitConflictError as error:
        # It may have been visible for a moment if it has expired meanwhile.
        told.outcome = "unknown" if "tombstone" in str(error) else "refused"
        if token is not None:
            run.world.checker.refused(where, token)
        raise
    told.outcome = "done"
    for key in keys:
        run.world.checker.committed(where, number, token, key)
    return token


def _write_others(
    checkpoint: CheckpointWriter, label: str, number: int, newest: Checkpoint | None, how: str
) -> Others:
    """Write a keyed state whose rows all change, of which every other checkpoint lacks one, and
    list state; return their contents.
    """
    rows = {key: {KEY: key, COUNT: 10 * number} for key in ("u0", "u1", "u2")[: 2 + number % 2]}
    offsets = [number, number + 1]
    before = newest.others.get(TOTALS) if newest is not None else None
    if newest is None or before is None:
        checkpoint.write_keyed(label, TOTALS, [*rows.values()], key=KEY, max_parallelism=2)
    elif how == "full":
        checkpoint.write_keyed(label, TOTALS, [*rows.values()], key=KEY)
    elif how == "against":
        checkpoint.write_changes_against(
            label, TOTALS, [*rows.values()], base=newest.number, key=KEY
        )
    else:
        deletes = [{KEY: key} for key in sorted(before.keys() - rows.keys())]
        changes = Changes([*rows.values()], deletes or None)
        checkpoint.write_changes(label, TOTALS, changes, base=newest.number, key=KEY)
    checkpoint.write_split("source", OFFSETS, [[{"offset": offset}] for offset in offsets])
    return {TOTALS: rows, OFFSETS: offsets}


@dataclass
class Run:
    """A world and its actors; ``entering`` exchanges the modules for actors of a release."""

    world: World
    entering: Callable[[], AbstractContextManager[None]] = nullcontext
    errors: list[str] = field(default_factory=list)
    unfinished: list[Actor] = field(default_factory=list)
    # the number of actors that created a hold, by its name
    makers: Counter[str] = field(default_factory=Counter)

    def spawn(self, actor: Actor) -> None:
        """Start an actor at its time."""
        at_ms = EPOCH_MS + int(actor.hours * HOUR_MS)
        tasks: list[Task] = []
        body = lambda: self._act(actor, tasks[0])  # noqa: E731
        tasks.append(
            self.world.scheduler.spawn(
                actor.name, body, at_ms=at_ms, skew_ms=actor.skew_ms, entering=self.entering
            )
        )

    def _act(self, actor: Actor, task: Task) -> None:
        from tests.simulate.verbs import VERBS  # they import this module

        task.doing = f"{actor.verb} by {actor.name}"
        if actor.verb in ("purge", "forget"):
            self.unfinished.append(actor)
        try:
            VERBS[actor.verb](self, actor)
            self.world.log.succeeded()
            if actor in self.unfinished:
                self.unfinished.remove(actor)
        except StateStoreError as error:
            self.errors.append(f"{task.doing}: {type(error).__name__}: {error}")
            self._refuse_alarm(actor, task, error)
        except OSError as error:
            if "simulated" not in str(error):
                raise
            self.errors.append(f"{task.doing}: {error}")

    def _refuse_alarm(self, actor: Actor, task: Task, error: StateStoreError) -> None:
        """Check that, without faults, no intact store is reported as damaged or incomplete.

        An operator keeps its state under every name.
        """
        if actor.verb == "job" and isinstance(error, StateNotFoundError | LeftOutStateError):
            self.world.checker.wrong("refused", f"the state of every job is there: {error}")
        faults = any(one.met & {"fail", "lost", "stale"} for one in self.world.scheduler.tasks)
        if faults or any(seen.lost for seen in self.world.checker.stores.values()):
            return
        others = {one.doing.partition(" ")[0] for one in self.world.scheduler.tasks} - {""}
        is_alone = actor.verb == "job" and others <= {"job", *READING}
        jobs = sum(one.doing.startswith("job ") for one in self.world.scheduler.tasks)
        if isinstance(error, CommitConflictError) and is_alone and jobs == 1:
            self.world.checker.wrong("refused", f"no other writer has claimed the store: {error}")
        expected = (CommitConflictError, CheckpointNotFoundError, InvalidArgumentError)
        if isinstance(error, (*expected, StateNotFoundError)):
            return
        if actor.verb == "gc" and isinstance(error, StorageError | CorruptionError):
            self.world.checker.wrong("alarm", f"gc refuses a intact store: {error}")
        if actor.verb == "reader" and isinstance(error, CorruptionError):
            self.world.checker.wrong("reader", f"what was pinned cannot be read: {error}")


Verb = Callable[[Run, Actor], None]
