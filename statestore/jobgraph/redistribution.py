"""Redistribution of operator state on a rescale: which new subtask gets which element (I7, I11).

It follows Flink's ``RoundRobinOperatorStateRepartitioner``. An element is ``(old subtask,
position)``; it is moved as a whole, and its contents are not read.

split       Each element goes to one new subtask. The old subtasks' lists are concatenated in
            subtask order and cut into contiguous blocks whose sizes differ by at most one. The
            larger blocks of a state start at the subtask where the larger blocks of the previous
            state ended, so that the remainders of many states spread over the subtasks.
union       Every new subtask gets every element.
broadcast   New subtask ``i`` gets the copy of the ``i % m``-th of the ``m`` subtasks that reported.

At unchanged parallelism, split state and reported broadcast copies stay in their subtasks. Old
subtasks without state (``None``: they had finished) count for the parallelism and report nothing.

Flink keeps an operator's states in Java's ``HashMap`` and redistributes them in its iteration
order, which only determines the subtasks that get a remainder. From 64 buckets on, Java converts a
bucket with 8 names to a tree, which has another order. That order is not implemented.

A restore only reads, so repeated restores of one snapshot give the same result. A job that
snapshots a union state again must report each element from exactly *one* subtask; if every subtask
reports all elements, they multiply.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple, TypeVar

from statestore.errors import InvalidArgumentError, unknown_choice
from statestore.keys.groups import check_parallelism, is_int
from statestore.keys.hashing import key_hash

# A smaller HashMap doubles if a bucket is crowded; from this capacity on the bucket becomes a tree.
_TREES_FROM = 64


def stored_order(names: Iterable[str]) -> list[str]:
    """Return the iteration order of one old subtask's states: a HashMap filled by put."""
    stored = list(names)
    needed = -(-len(stored) * 4 // 3)
    buckets: list[list[str]] = [[] for _ in range(1 << (needed - 1).bit_length())]
    for name in stored:
        bucket = _bucket_of(name, buckets)
        bucket.append(name)
        if len(bucket) > 8 and len(buckets) < _TREES_FROM:
            buckets = _double_buckets(buckets)
    return list(chain.from_iterable(buckets))


def grouping_order(look_ups: Iterable[str]) -> list[str]:
    """Return the iteration order of the HashMap in which computeIfAbsent groups states.

    computeIfAbsent checks the size before it inserts, so the table grows one look-up late, even if
    that look-up adds nothing. Unlike put, it counts the new name as part of a crowded bucket, and
    inserts it at the bucket's front.
    """
    buckets: list[list[str]] = [[] for _ in range(16)]
    size = 0
    for name in look_ups:
        if size > len(buckets) * 3 // 4:
            buckets = _double_buckets(buckets)
        bucket = _bucket_of(name, buckets)
        if name in bucket:
            continue
        bucket.insert(0, name)
        size += 1
        if len(bucket) >= 8 and len(buckets) < _TREES_FROM:
            buckets = _double_buckets(buckets)
    return list(chain.from_iterable(buckets))


def _double_buckets(buckets: list[list[str]]) -> list[list[str]]:
    """Return the buckets of a table of twice the size; names of one bucket keep their order."""
    doubled: list[list[str]] = [[] for _ in range(2 * len(buckets))]
    for name in chain.from_iterable(buckets):
        _bucket_of(name, doubled).append(name)
    return doubled


def _bucket_of(name: str, buckets: list[list[str]]) -> list[str]:
    return buckets[_spread_hash(name) & (len(buckets) - 1)]


@lru_cache(maxsize=4096)
def _spread_hash(name: str) -> int:
    """Return HashMap's hash of a name: Java's string hash, with its upper half folded in."""
    code = key_hash(name, key_type="string", hash_scheme="java") & 0xFFFFFFFF
    return code ^ code >> 16


T = TypeVar("T")


class RedistributionMode(StrEnum):
    """How elements are distributed to subtasks. Flink's names are accepted as well."""

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"

    @classmethod
    def _missing_(cls, value: object) -> RedistributionMode:
        if isinstance(value, str) and value in _FLINK_MODES:
            return _FLINK_MODES[value]
        raise unknown_choice("redistribution mode", value, cls)


_FLINK_MODES = {
    "SPLIT_DISTRIBUTE": RedistributionMode.SPLIT,
    "UNION": RedistributionMode.UNION,
    "BROADCAST": RedistributionMode.BROADCAST,
}

_Mode = RedistributionMode | str
_Counts = Sequence[Mapping[str, tuple[_Mode, int]] | None]
_Lists = Sequence[Mapping[str, tuple[_Mode, Sequence[T]]] | None]


class ElementRun(NamedTuple):
    """Consecutive elements of an old subtask's list: positions ``first`` to ``stop`` - 1."""

    subtask: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class _State:
    """One state: the reported element counts, and the new subtask that takes the first block."""

    mode: RedistributionMode
    lists: tuple[ElementRun, ...]  # one per reporting old subtask, ascending
    starts: tuple[int, ...]  # each list's start in the concatenation of all lists; last: the total
    first_taker: int = 0

    def block(self, subtask: int, parallelism: int) -> tuple[ElementRun, ...]:
        """Return the block of a split state that new ``subtask`` takes."""
        base, extra = divmod(self.starts[-1], parallelism)
        turn = (subtask - self.first_taker) % parallelism
        position = turn * base + min(turn, extra)
        stop = position + base + (turn < extra)
        runs = []
        index = bisect_right(self.starts, position) - 1
        while position < stop:
            start, upto = self.starts[index], min(stop, self.starts[index + 1])
            runs.append(ElementRun(self.lists[index].subtask, position - start, upto - start))
            position, index = upto, index + 1
        return tuple(runs)

    def own(self, subtask: int) -> tuple[ElementRun, ...]:
        """Return the list that old ``subtask`` itself reported: one run, or none."""
        index = bisect_left(self.lists, subtask, key=lambda run: run.subtask)
        has_list = index < len(self.lists) and self.lists[index].subtask == subtask
        return self.lists[index : index + 1] if has_list else ()

    def copies(
        self, subtask: int, *, staying: bool, old_parallelism: int
    ) -> tuple[ElementRun, ...]:
        """Return the broadcast copies that Flink gives to new ``subtask``, its own copy first."""
        own = self.own(subtask) if staying else ()
        if staying and len(self.lists) == old_parallelism:
            return own
        dealt = self.lists[subtask % len(self.lists)]
        return own if dealt in own else (*own, dealt)


@dataclass(frozen=True, slots=True)
class RedistributionPlan:
    """The elements that each new subtask reads; see :func:`plan_redistribution`."""

    old_parallelism: int
    parallelism: int
    _states: Mapping[str, _State]

    @property
    def modes(self) -> dict[str, RedistributionMode]:
        """The mode of every state."""
        return {name: state.mode for name, state in self._states.items()}

    def runs(self, subtask: int) -> dict[str, tuple[ElementRun, ...]]:
        """Return the reads of one new subtask: for every state its runs, or ``()``.

        The cost does not depend on the parallelism, and all subtasks share the runs of a union
        state. A broadcast state has one copy: see :func:`redistribute`. Raises
        :class:`InvalidArgumentError` if the subtask does not exist.
        """
        return {
            name: runs[:1] if self._states[name].mode is RedistributionMode.BROADCAST else runs
            for name, runs in self.handed(subtask).items()
        }

    def handed(self, subtask: int) -> dict[str, tuple[ElementRun, ...]]:
        """Return what Flink gives to a new subtask: like :meth:`runs`, with both copies.

        Flink gives two copies if only some subtasks reported a broadcast state and the parallelism
        is unchanged: the subtask's own copy, and a redistributed one.
        """
        if not is_int(subtask) or not 0 <= subtask < self.parallelism:
            raise InvalidArgumentError(
                f"subtask {subtask!r} does not exist: at parallelism {self.parallelism} the "
                f"subtasks are 0 to {self.parallelism - 1}"
            )
        return {name: self._runs_of(state, subtask) for name, state in self._states.items()}

    def _runs_of(self, state: _State, subtask: int) -> tuple[ElementRun, ...]:
        staying = self.parallelism == self.old_parallelism
        if state.mode is RedistributionMode.UNION:
            return state.lists
        if state.mode is RedistributionMode.BROADCAST:
            return state.copies(subtask, staying=staying, old_parallelism=self.old_parallelism)
        return state.own(subtask) if staying else state.block(subtask, self.parallelism)


def plan_redistribution(old: _Counts, parallelism: int) -> RedistributionPlan:
    """Plan a redistribution from the element counts alone.

    ``old`` has, for each old subtask, None or ``{state name: (mode, element count)}`` in the order
    in which the snapshot stores the states. Raises :class:`InvalidArgumentError` if the old or the
    new parallelism is not in 1..32768, and for an unknown mode, a state with two modes, or an
    invalid element count.
    """
    check_parallelism(parallelism)
    check_parallelism(len(old), "the number of old subtasks")
    reported, split_look_ups = _collect(old)
    states = {}
    for name, (mode, lists) in reported.items():
        # An empty broadcast copy is still a copy; an empty list is dropped.
        kept = [run for run in lists if run.stop or mode is RedistributionMode.BROADCAST]
        starts = tuple(accumulate((run.stop for run in kept), initial=0))
        states[name] = _State(mode, tuple(kept), starts)
    taker = 0
    for name in grouping_order(split_look_ups):
        states[name] = replace(states[name], first_taker=taker)
        taker = (taker + states[name].starts[-1]) % parallelism  # advanced by the remainder
    return RedistributionPlan(len(old), parallelism, states)


def redistribute_counts(
    old: _Counts, parallelism: int
) -> tuple[dict[str, tuple[tuple[int, int], ...]], ...]:
    """Return, for each new subtask, ``{name: ((old subtask, position), ...)}`` as Flink gives it.

    Every new subtask has an item for every state, old subtasks are ascending, and the subtasks
    share one tuple for a union state. It takes and raises the same as :func:`plan_redistribution`.
    """
    plan = plan_redistribution(old, parallelism)

    def places(_: str, run: ElementRun) -> Iterable[tuple[int, int]]:
        return ((run.subtask, position) for position in range(run.first, run.stop))

    handed = (plan.handed(subtask) for subtask in range(parallelism))
    ascending = ({name: tuple(sorted(runs)) for name, runs in each.items()} for each in handed)
    return tuple(_gather(plan.modes, ascending, places))


def redistribute(old: _Lists[T], parallelism: int) -> tuple[dict[str, tuple[T, ...]], ...]:
    """Return, for each new subtask, ``{name: its elements}`` to restore.

    ``old`` has, for each old subtask, None or ``{state name: (mode, elements)}``. Unlike with
    :func:`redistribute_counts`, each subtask gets exactly one copy of a broadcast state (I7). If
    Flink would give it its own copy and then overwrite that with an equal one, its own copy is
    used. Subtasks share one tuple for a union state, and for the same broadcast copy. Raises the
    errors of :func:`plan_redistribution`.
    """
    plan = plan_redistribution(_count_elements(old), parallelism)
    return tuple(_gather(plan.modes, map(plan.runs, range(parallelism)), _reader(old)))


def subtask_elements(old: _Lists[T], parallelism: int, subtask: int) -> dict[str, tuple[T, ...]]:
    """Return the elements of only one new subtask: ``redistribute(old, parallelism)[subtask]``.

    To read one subtask's elements from a file, use ``plan_redistribution(...).runs(subtask)``.
    Raises the errors of :func:`plan_redistribution`, and :class:`InvalidArgumentError` if the
    subtask does not exist.
    """
    plan = plan_redistribution(_count_elements(old), parallelism)
    return next(_gather(plan.modes, [plan.runs(subtask)], _reader(old)))


def _gather(
    modes: Mapping[str, RedistributionMode],
    runs_of_subtasks: Iterable[Mapping[str, tuple[ElementRun, ...]]],
    read: Callable[[str, ElementRun], Iterable[T]],
) -> Iterator[dict[str, tuple[T, ...]]]:
    """Yield each subtask's elements from its runs; elements that subtasks share are built once."""
    shared: dict[tuple[str, tuple[ElementRun, ...]], tuple[T, ...]] = {}
    for runs_by_name in runs_of_subtasks:
        elements: dict[str, tuple[T, ...]] = {}
        for name, runs in runs_by_name.items():
            # All subtasks have the same runs of a union state, so the name is a sufficient key.
            key = (name, () if modes[name] is RedistributionMode.UNION else runs)
            got = shared.get(key)
            if got is None:
                got = tuple(chain.from_iterable(read(name, run) for run in runs))
                if modes[name] is not RedistributionMode.SPLIT:
                    shared[key] = got
            elements[name] = got
        yield elements


def _count_elements(old: _Lists[T]) -> list[dict[str, tuple[_Mode, int]]]:
    """Check that the elements are sequences, and return ``old`` with their counts."""
    if not _is_list(old) or not all(
        elements is None or isinstance(elements, Mapping) for elements in old
    ):
        raise InvalidArgumentError(
            "the reports of the old subtasks must be a list with one item per subtask: its "
            "states by name, or None"
        )
    for subtask, states in enumerate(old):
        for name, (_, elements) in (states or {}).items():
            if not _is_list(elements):
                raise InvalidArgumentError(
                    f"state {name!r} of old subtask {subtask}: its elements must be a list or "
                    f"tuple, not {type(elements).__name__}"
                )
    return [{n: (mode, len(e)) for n, (mode, e) in (states or {}).items()} for states in old]


def _reader(old: _Lists[T]) -> Callable[[str, ElementRun], Sequence[T]]:
    known = [states or {} for states in old]
    return lambda name, run: known[run.subtask][name][1][run.first : run.stop]


def _collect(
    old: _Counts,
) -> tuple[dict[str, tuple[RedistributionMode, list[ElementRun]]], list[str]]:
    """Return each state's mode and lists, and the names of split states in Flink's order."""
    reported: dict[str, tuple[RedistributionMode, list[ElementRun]]] = {}
    split_look_ups = []
    for subtask, states in enumerate(known or {} for known in old):
        for name in stored_order(states):
            mode, count = RedistributionMode(states[name][0]), states[name][1]
            if not is_int(count) or count < 0:
                raise InvalidArgumentError(
                    f"state {name!r} of old subtask {subtask}: the element count must be an int "
                    f"of 0 or more, not {count!r}"
                )
            known, lists = reported.setdefault(name, (mode, []))
            if known is not mode:
                raise InvalidArgumentError(
                    f"state {name!r} has two redistribution modes: {known.value} in old subtask "
                    f"{lists[0].subtask}, {mode.value} in old subtask {subtask}"
                )
            lists.append(ElementRun(subtask, 0, count))
            if mode is RedistributionMode.SPLIT:
                split_look_ups.append(name)
    return reported, split_look_ups


def _is_list(value: object) -> bool:
    # A Python string is a sequence, but as elements it is one element, not many.
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
