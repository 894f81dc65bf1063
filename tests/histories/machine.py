"""Random histories of a store, compared with a reference that is a dictionary: I4, I6, I9, I10.

Each rule is a command in its own process: undisturbed, with a fault at one storage call, or with
another command in its middle. After each rule, the visible and held checkpoints may have changed
only as the command allows. Every visible, saved or pinned checkpoint restores with the reference's
rows.

The ``quiet`` rule runs at the end and occasionally before. Time passes, and then one more expiry
and one more garbage collection leave exactly the live files.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    InvalidArgumentError,
    LateCommitError,
    MissingFileError,
    StorageError,
)
from statestore.snapshot import commit
from statestore.snapshot.writer import CheckpointWriter
from statestore.store import StateStore
from statestore.testing.faults import Fault, FaultyStorage
from statestore.testing.reference import ReferenceCheckpoint, ReferenceKeyed, ReferenceOperator
from tests.histories.draws import Care, cares, faults, places
from tests.histories.world import HOUR, MINIMUM_AGE, Interrupted, May, World, same

__all__ = ["Histories"]

MEMORY = Path("/dev/shm")
MOST = 8  # limits the visible checkpoints, so that reading all of them stays fast
WRITERS = (0, 1)
Run = Callable[[StateStore], Any]


@dataclass
class UnderWay:
    """A checkpoint that was begun and not committed."""

    writer: CheckpointWriter
    checkpoint: ReferenceCheckpoint
    began_ms: int
    must_commit: bool = True


class Histories(RuleBasedStateMachine):
    """One store and all operations on it."""

    steps: ClassVar[Counter[str]] = Counter()
    histories = 0

    @initialize()
    def begin(self) -> None:
        Histories.histories += 1
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(prefix="histories-", dir=memory)
        self.world = World(Path(self.folder.name))
        # Manifests contain their time, which must come from the history's clock.
        self.clock = patch.object(commit, "time", self.world)
        self.clock.start()
        self.stores: dict[int, tuple[StateStore, FaultyStorage]] = {}
        self.owner: int | None = None
        self.under_way: dict[int, UnderWay] = {}
        self.taken = self.since_quiet = 0
        self.previous = ""
        self.intact = False
        self._take(0, None)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                if self.intact:  # otherwise another error is being raised, and must not be hidden
                    self._quiet()
            finally:
                self.clock.stop()
                self.folder.cleanup()

    # --- writers ----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.reference.visible) < MOST)
    @rule(writer=st.sampled_from(WRITERS), fault=faults)
    def snapshot(self, writer: int, fault: Fault | None) -> None:
        """Take a complete checkpoint. If the other writer owns the store, it is replaced."""
        self._count("snapshot", fault)
        self.under_way.pop(writer, None)
        self._take(writer, fault)

    @rule(writer=st.sampled_from(WRITERS))
    def start(self, writer: int) -> None:
        """Write the states of a checkpoint without committing it."""
        self._count("start", None)
        self._start(writer, None)

    @rule(writer=st.sampled_from(WRITERS), place=places)
    def derive(self, writer: int, place: int) -> None:
        """Begin a checkpoint that references the files of another one."""
        self._count("derive", None)
        self._derive(writer, place)

    def _derive(self, writer: int, place: int) -> bool:
        reference = self.world.reference
        number = sorted(reference.visible)[place % len(reference.visible)]
        store, _ = self._open(writer)
        manifest = self.world.store().manifest(number)
        now_ms, known = self.world.now_ms, reference.visible[number]
        try:
            made = store.parts.deriver().begin(manifest, newest_id=None)
        except CommitConflictError:
            self._lost(writer)
            return False
        self.owner = writer
        made.__enter__()
        for entry in manifest.entries:
            made.collected.carry_entry(entry)
        self.under_way[writer] = UnderWay(made, known, now_ms)
        return True

    @precondition(lambda self: self.under_way and len(self.world.reference.visible) < MOST)
    @rule(place=places, fault=faults)
    def finish(self, place: int, fault: Fault | None) -> None:
        """Commit a checkpoint that was begun, if its writer still owns the store and was fast
        enough.
        """
        self._count("finish", fault)
        writer = sorted(self.under_way)[place % len(self.under_way)]
        self._finish(writer, fault)

    @precondition(lambda self: len(self.under_way) == len(WRITERS))
    @rule(writer=st.sampled_from(WRITERS))
    def die(self, writer: int) -> None:
        """End a writer together with the checkpoints that it began. Its files stay."""
        self._count("die", None)
        self._lost(writer)

    def _take(self, writer: int, fault: Fault | None) -> None:
        if self._start(writer, fault):
            self._finish(writer, fault)

    def _start(self, writer: int, fault: Fault | None) -> bool:
        store, storage = self._open(writer)
        self.taken += 1
        number, parallelism = self.taken, 1 + self.taken % 2
        rows = [{"user": f"u{i}", "n": 10 * number + i} for i in range(3)]
        lists = [[{"offset": number + i}] for i in range(parallelism)]
        storage.arm(fault)
        try:
            made = store.snapshot(parallelism=parallelism)
            self.owner = writer
            made.__enter__()
            if number % 4 == 1:
                keyed = made.write_keyed("users", "totals", rows, key="user", max_parallelism=2)
            else:
                keyed = made.write_changes_against(
                    "users", "totals", rows, key="user", max_parallelism=2
                )
            offsets = made.write_split("source", "offsets", lists)
        except CommitConflictError:
            assert self.owner != writer
            self._lost(writer)
            return False
        except StorageError:
            assert fault is not None
            self._crashed(writer)
            return False
        checkpoint = ReferenceCheckpoint(
            parallelism,
            {("users", "totals"): ReferenceKeyed(keyed.state, tuple(rows))},
            {("source", "offsets"): ReferenceOperator(offsets.state, tuple(map(tuple, lists)))},
        )
        self.under_way[writer] = UnderWay(made, checkpoint, self.world.now_ms)
        return True

    def _finish(self, writer: int, fault: Fault | None) -> None:
        begun = self.under_way.pop(writer)
        _, storage = self._open(writer)
        if fault is not None:
            storage.arm(fault)
        number, _ = begun.writer.planned
        may, done = May(commit={number: begun.checkpoint}), False
        try:
            begun.writer.__exit__(None, None, None)
            done = True
        except LateCommitError:
            assert self.owner != writer
            self._lost(writer)
        except CommitConflictError:
            assert self.owner != writer
            may = May()
            self._lost(writer)
        except MissingFileError:
            # The commit took longer than the minimum age, so gc treated its files as orphans.
            assert self.world.now_ms - begun.began_ms >= MINIMUM_AGE or not begun.must_commit
            may = May()
        except StorageError:
            assert fault is not None
            self._crashed(writer)
        storage.arm(None)
        self.world.settle(may, done=done)

    def _open(self, writer: int) -> tuple[StateStore, FaultyStorage]:
        if writer not in self.stores:
            storage = FaultyStorage(self.world.storage)
            self.stores[writer] = self.world.store(storage), storage
        return self.stores[writer]

    def _crashed(self, writer: int) -> None:
        """The claim may exist or not, and the next writer finds out."""
        self.owner = None
        self._lost(writer)

    def _lost(self, writer: int) -> None:
        self.stores.pop(writer, None)
        self.under_way.pop(writer, None)

    # --- commands that keep and delete ------------------------------------------------------------

    @rule(command=cares, fault=faults)
    def care(self, command: Care, fault: Fault | None) -> None:
        """Run one command, possibly with a fault."""
        self._count(command.verb, fault)
        storage = FaultyStorage(self.world.storage)
        storage.arm(fault)
        may, run = self._prepared(command)
        done = self._ran(command, run, storage, faulty=fault is not None)
        self.world.settle(may, done=done)

    @rule(outer=cares, inner=cares, at=st.integers(1, 25))
    def care_meanwhile(self, outer: Care, inner: Care, at: int) -> None:
        """Run one command, and another one in its middle."""
        self._count(f"{outer.verb} while another runs", None)
        may, run = self._prepared(outer, alone=False)

        def happens() -> None:
            others, run_inner = self._prepared(inner, alone=False)
            may.add(others)
            self._ran(inner, run_inner, FaultyStorage(self.world.storage), alone=False)

        self._ran(outer, run, Interrupted(self.world.storage, at, happens), alone=False)
        self.world.settle(may, done=False)

    @precondition(lambda self: len(self.world.reference.visible) < MOST)
    @rule(
        commands=st.lists(cares, min_size=1, max_size=3),
        derived=st.booleans(),
        place=places,
        at=st.integers(1, 40),
    )
    def snapshot_meanwhile(self, commands: list[Care], derived: bool, place: int, at: int) -> None:
        """Take a checkpoint with a third writer, and run commands that keep or delete in its
        middle.
        """
        what = "derived checkpoint" if derived else "snapshot"
        self._count(f"{what} while others run", None)
        others = May()

        def happens() -> None:
            for command in commands:
                may, run = self._prepared(command, alone=False, at_once=False)
                others.add(may)
                self._ran(command, run, FaultyStorage(self.world.storage), alone=False)

        storage = Interrupted(self.world.storage, at, happens)
        self.stores[2] = self.world.store(storage), storage
        assert self._derive(2, place) if derived else self._start(2, None)
        others.commit = {self.under_way[2].writer.planned[0]: self.under_way[2].checkpoint}
        self.under_way.pop(2).writer.__exit__(None, None, None)
        self.world.settle(others, done=False)
        self.stores.pop(2)
        assert others.commit.keys() <= self.world.reference.visible.keys()

    @precondition(lambda self: len(self.world.reference.visible) < MOST)
    @rule(command=cares, writer=st.sampled_from(WRITERS), at=st.integers(1, 25))
    def commit_meanwhile(self, command: Care, writer: int, at: int) -> None:
        """Run a command that keeps or deletes, and commit a checkpoint in its middle."""
        begun = self.under_way.get(writer)
        late = begun is None or self.world.now_ms - begun.began_ms >= MINIMUM_AGE
        if late or writer != self.owner:
            return
        self._count(f"{command.verb} while a writer commits", None)
        may, run = self._prepared(command, alone=False)

        def happens() -> None:
            number = self.under_way[writer].writer.planned[0]
            may.commit = {number: self.under_way[writer].checkpoint}
            self.under_way.pop(writer).writer.__exit__(None, None, None)

        self._ran(command, run, Interrupted(self.world.storage, at, happens), alone=False)
        self.world.settle(may, done=False)

    @precondition(lambda self: self.previous != "time passes")
    @rule(hours=st.integers(1, 30))
    def pass_time(self, hours: int) -> None:
        """Let time pass: leases end, and files become older."""
        self._count("time passes", None)
        self.world.storage.now_ms += hours * HOUR

    @precondition(lambda self: self.since_quiet >= 20)
    @rule()
    def quiet(self) -> None:
        """Check that no dead file stays forever."""
        self._count("quiet", None)
        self.since_quiet = 0
        self._quiet()

    @invariant()
    def what_is_kept_is_readable(self) -> None:
        """Check that no live file was removed."""
        if hasattr(self, "world"):
            kept = self.world.reference.kept(self.world.now_ms)
            self.world.check(kept, 1 + sum(self.steps.values()) % 2)
            self.intact = True

    def _quiet(self) -> None:
        for writer in (*WRITERS, 2):
            self._lost(writer)
        for command in (Care("expire", retain=1), Care("gc")):
            may, run = self._prepared(command)
            assert self._ran(command, run, self.world.storage)
            self.world.settle(may, done=True)
            self.world.storage.now_ms += MINIMUM_AGE
        may, run = self._prepared(Care("gc"))  # deletes files that became old enough
        assert self._ran(Care("gc"), run, self.world.storage)
        self.world.settle(may, done=True)
        self.world.check_exactly_what_lives()

    def _prepared(self, care: Care, *, alone: bool = True, at_once: bool = True) -> tuple[May, Run]:
        """Return the changes that a command may make in the current state, and a function that runs
        it.
        """
        world, reference = self.world, self.world.reference
        now_ms = world.now_ms
        number = sorted(reference.visible)[care.place % len(reference.visible)]
        match care.verb:
            case "savepoint":
                saves = {(care.name, number)}
                return May(save=saves), lambda store: store.maintenance.savepoint(care.name, number)
            case "delete savepoint":
                return May(let_go={care.name}), lambda store: store.maintenance.delete_savepoint(
                    care.name
                )
            case "pin":
                pinned = {(number, now_ms + care.hours * HOUR)}
                return May(pin=pinned), lambda s: s.maintenance.pin(
                    number, lease=timedelta(hours=care.hours)
                )
            case "unpin":
                tokens = sorted(reference.pins)
                token = tokens[care.place % len(tokens)] if tokens else "none"
                return May(unpin={token}), lambda store: store.maintenance.unpin(token)
            case "expire":
                old = world.older_than(care.hours) if care.by_age else set(reference.visible)
                surplus = reference.surplus(care.retain) & old if alone else set(reference.visible)
                age = timedelta(hours=care.hours) if care.by_age else None
                # Another command can release these holds in between.
                held = reference.held(now_ms) if alone else set()
                expired = May(expire=surplus - held)
                return expired, lambda s: s.maintenance.expire(retain=care.retain, older_than=age)
            case "gc":
                now = care.at_once and at_once and not self.under_way
                age_s = 0 if now else MINIMUM_AGE // 1000
                return May(), lambda store: store.maintenance.gc(
                    minimum_age=timedelta(seconds=age_s)
                )
        known, parallelism = reference.visible[number], 1 + care.hours % 2
        return May(), lambda store: same(store, number, known, parallelism)

    def _ran(
        self,
        care: Care,
        run: Run,
        storage: Any,
        *,
        faulty: bool = False,
        alone: bool = True,
    ) -> bool:
        """Run a command; return whether it succeeded. Its errors must be among the allowed ones."""
        reference = self.world.reference
        try:
            run(self.world.store(storage))
        except CheckpointNotFoundError:
            gone = {"delete savepoint": care.name not in reference.savepoints}
            assert not alone or gone.get(care.verb, not reference.pins)
        except InvalidArgumentError:
            assert care.verb == "savepoint"
            assert not alone or care.name in reference.savepoints
        except StorageError:
            assert faulty or (care.verb == "gc" and not alone)
        except MissingFileError:
            assert care.verb in ("gc", "restore")
            assert not alone
        else:
            return True
        return False

    def _count(self, what: str, fault: Fault | None) -> None:
        self.steps[f"{what} with a fault" if fault else what] += 1
        self.since_quiet += 1
        self.previous = what
        self.intact = False
