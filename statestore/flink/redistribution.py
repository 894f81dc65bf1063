"""Operator state on a rescale: which new subtask gets which element (I7, I11).

Follows Flink's ``RoundRobinOperatorStateRepartitioner``. An element is ``(old subtask, position)``;
it is moved, never opened.

split       Each element goes to one new subtask. The old subtasks' lists are joined in subtask
            order and cut into contiguous blocks whose sizes differ by at most one. The larger
            blocks of one state begin where those of the state before it ended, so that the
            remainders of many states spread over the subtasks.
union       Every new subtask gets every element.
broadcast   New subtask ``i`` gets the copy of the ``i % m``-th of the ``m`` subtasks that reported.

At unchanged parallelism split state and reported broadcast copies stay where they were. Old
subtasks without state (``None``: they had finished) count for the parallelism and report nothing.

States are dealt in the iteration order of Java's ``HashMap`` (below); it decides only who
gets a remainder.

A restore reads only, so k restores of one snapshot give the same k times. A job that snapshots a
union state again must report each element from *one* subtask; if all report all, it multiplies.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple, TypeVar

from statestore.errors import InvalidArgumentError
from statestore.keys.groups import MAX_PARALLELISM, MIN_PARALLELISM, is_int
from statestore.keys.hashing import key_hash

__all__ = [
    "RedistributionMode",
    "RedistributionPlan",
    "Run",
    "check_parallelism",
    "grouping_order",
    "plan_redistribution",
    "redistribute",
    "redistribute_counts",
    "stored_order",
    "subtask_elements",
]


# The order in which Java's ``HashMap`` gives back the names it holds.
#
# Flink keeps the states of an operator in such maps and deals them in this order; it decides only
# which subtask gets a remainder. From 64 buckets on Java makes a tree, in another order, of a
# bucket with 8 names: not followed.


# A smaller HashMap doubles where a bucket is crowded; from this capacity on it makes a tree of it.
_TREES_FROM = 64


def stored_order(names: Iterable[str]) -> list[str]:
    """The iteration order of one old subtask's states: a HashMap sized for them, filled by put."""
    stored = list(names)
    needed = -(-len(stored) * 4 // 3)
    buckets: list[list[str]] = [[] for _ in range(1 << (needed - 1).bit_length())]
    for name in stored:
        bucket = _bucket_of(name, buckets)
        bucket.append(name)
        if len(bucket) > 8 and len(buckets) < _TREES_FROM:
            buckets = _doubled(buckets)
    return list(chain.from_iterable(buckets))


def grouping_order(look_ups: Iterable[str]) -> list[str]:
    """The iteration order of the HashMap in which states are grouped by computeIfAbsent.

    It checks the size on the way in, so the table grows one look-up late, even if that look-up
    adds nothing; and unlike put it counts the new name into a crowded bucket, at its front.
    """
    buckets: list[list[str]] = [[] for _ in range(16)]
    size = 0
    for name in look_ups:
        if size > len(buckets) * 3 // 4:
            buckets = _doubled(buckets)
        bucket = _bucket_of(name, buckets)
        if name in bucket:
            continue
        bucket.insert(0, name)
        size += 1
        if len(bucket) >= 8 and len(buckets) < _TREES_FROM:
            buckets = _doubled(buckets)
    return list(chain.from_iterable(buckets))


def _doubled(buckets: list[list[str]]) -> list[list[str]]:
    """The buckets of a table of twice the size; names of one bucket keep their order."""
    doubled: list[list[str]] = [[] for _ in range(2 * len(buckets))]
    for name in chain.from_iterable(buckets):
        _bucket_of(name, doubled).append(name)
    return doubled


def _bucket_of(name: str, buckets: list[list[str]]) -> list[str]:
    return buckets[_spread_hash(name) & (len(buckets) - 1)]


@lru_cache(maxsize=4096)
def _spread_hash(name: str) -> int:
    """HashMap's view of a name: Java's string hash with its upper half folded into the lower."""
    code = key_hash(name, key_type="string", hash_scheme="java") & 0xFFFFFFFF
    return code ^ code >> 16


T = TypeVar("T")


class RedistributionMode(StrEnum):
    """How a list of elements is shared between subtasks. Takes Flink's names as well."""

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"

    @classmethod
    def _missing_(cls, value: object) -> RedistributionMode:
        if isinstance(value, str) and value in _FLINK_MODES:
            return _FLINK_MODES[value]
        known = ", ".join(repr(mode.value) for mode in cls)
        raise InvalidArgumentError(f"unknown redistribution mode {value!r}: use one of {known}")


_FLINK_MODES = {
    "SPLIT_DISTRIBUTE": RedistributionMode.SPLIT,
    "UNION": RedistributionMode.UNION,
    "BROADCAST": RedistributionMode.BROADCAST,
}

_Mode = RedistributionMode | str
_Counts = Sequence[Mapping[str, tuple[_Mode, int]] | None]
_Lists = Sequence[Mapping[str, tuple[_Mode, Sequence[T]]] | None]


class Run(NamedTuple):
    """Consecutive elements of one old subtask's list: positions ``first`` up to before ``stop``."""

    subtask: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class _State:
    """One state: who reported how many elements, and the new subtask that takes the first block."""

    mode: RedistributionMode
    lists: tuple[Run, ...]  # one for each reporting old subtask, ascending
    starts: tuple[int, ...]  # where each list starts in all of them joined; last: the total
    first_taker: int = 0

    def block(self, subtask: int, parallelism: int) -> tuple[Run, ...]:
        """The block of a split state that new ``subtask`` takes."""
        base, extra = divmod(self.starts[-1], parallelism)
        turn = (subtask - self.first_taker) % parallelism
        at = turn * base + min(turn, extra)
        stop = at + base + (turn < extra)
        runs = []
        index = bisect_right(self.starts, at) - 1
        while at < stop:
            start, upto = self.starts[index], min(stop, self.starts[index + 1])
            runs.append(Run(self.lists[index].subtask, at - start, upto - start))
            at, index = upto, index + 1
        return tuple(runs)

    def own(self, subtask: int) -> tuple[Run, ...]:
        """What old ``subtask`` reported itself: one run, or none."""
        index = bisect_left(self.lists, subtask, key=lambda run: run.subtask)
        found = index < len(self.lists) and self.lists[index].subtask == subtask
        return self.lists[index : index + 1] if found else ()

    def copies(self, subtask: int, *, staying: bool, old_parallelism: int) -> tuple[Run, ...]:
        """The broadcast copies that Flink hands to new ``subtask``, its own one first."""
        own = self.own(subtask) if staying else ()
        if staying and len(self.lists) == old_parallelism:
            return own
        dealt = self.lists[subtask % len(self.lists)]
        return own if dealt in own else (*own, dealt)


@dataclass(frozen=True, slots=True)
class RedistributionPlan:
    """Which elements each new subtask reads, as a value; from :func:`plan_redistribution`."""

    old_parallelism: int
    parallelism: int
    _states: Mapping[str, _State]

    @property
    def modes(self) -> dict[str, RedistributionMode]:
        """The mode of every state."""
        return {name: state.mode for name, state in self._states.items()}

    def runs(self, subtask: int) -> dict[str, tuple[Run, ...]]:
        """What one new subtask reads: for every state its runs, ``()`` where it gets nothing.

        Costs the same at every parallelism, and all subtasks share the runs of a union state.
        Of a broadcast state it is one copy: see :func:`redistribute`.
        Raises :class:`InvalidArgumentError` if there is no such subtask.
        """
        return {
            name: runs[:1] if self._states[name].mode is RedistributionMode.BROADCAST else runs
            for name, runs in self.handed(subtask).items()
        }

    def handed(self, subtask: int) -> dict[str, tuple[Run, ...]]:
        """What Flink hands to one new subtask: as :meth:`runs`, with both broadcast copies.

        Flink hands over two copies when only some subtasks reported a broadcast state and the
        parallelism stayed the same: the subtask's own and a dealt one.
        """
        if not is_int(subtask) or not 0 <= subtask < self.parallelism:
            raise InvalidArgumentError(
                f"there is no subtask {subtask!r}: at parallelism {self.parallelism} subtasks are "
                f"0 to {self.parallelism - 1}"
            )
        return {name: self._runs_of(state, subtask) for name, state in self._states.items()}

    def _runs_of(self, state: _State, subtask: int) -> tuple[Run, ...]:
        staying = self.parallelism == self.old_parallelism
        if state.mode is RedistributionMode.UNION:
            return state.lists
        if state.mode is RedistributionMode.BROADCAST:
            return state.copies(subtask, staying=staying, old_parallelism=self.old_parallelism)
        return state.own(subtask) if staying else state.block(subtask, self.parallelism)


def plan_redistribution(old: _Counts, parallelism: int) -> RedistributionPlan:
    """Plan who gets what from the element counts alone.

    ``old`` holds for each old subtask None, or ``{state name: (mode, element count)}`` in the order
    in which the snapshot stores the states. Raises :class:`InvalidArgumentError` if the old or the
    new parallelism is not in 1..32768, and for an unknown mode, one state with two modes, or a
    count that is not a number of elements.
    """
    check_parallelism(parallelism)
    check_parallelism(len(old), "the number of old subtasks")
    reported, split_look_ups = _collect(old)
    states = {}
    for name, (mode, lists) in reported.items():
        # An empty broadcast copy is a copy; an empty list is nothing.
        kept = [run for run in lists if run.stop or mode is RedistributionMode.BROADCAST]
        starts = tuple(accumulate((run.stop for run in kept), initial=0))
        states[name] = _State(mode, tuple(kept), starts)
    taker = 0
    for name in grouping_order(split_look_ups):
        states[name] = replace(states[name], first_taker=taker)
        taker = (taker + states[name].starts[-1]) % parallelism  # on by the remainder
    return RedistributionPlan(len(old), parallelism, states)


def redistribute_counts(
    old: _Counts, parallelism: int
) -> tuple[dict[str, tuple[tuple[int, int], ...]], ...]:
    """For each new subtask ``{name: ((old subtask, position), ...)}``: what Flink hands to it.

    Every state is named in every new subtask, old subtasks ascend, and the subtasks share one
    tuple for a union state. Takes and raises what :func:`plan_redistribution` does.
    """
    plan = plan_redistribution(old, parallelism)

    def places(_: str, run: Run) -> Iterable[tuple[int, int]]:
        return ((run.subtask, position) for position in range(run.first, run.stop))

    handed = (plan.handed(subtask) for subtask in range(parallelism))
    ascending = ({name: tuple(sorted(runs)) for name, runs in each.items()} for each in handed)
    return tuple(_gather(plan.modes, ascending, places))


def redistribute(old: _Lists[T], parallelism: int) -> tuple[dict[str, tuple[T, ...]], ...]:
    """For each new subtask ``{name: its elements}``: what it restores.

    ``old`` holds for each old subtask None, or ``{state name: (mode, elements)}``. As
    :func:`redistribute_counts`, but of a broadcast state each subtask gets exactly one copy (I7):
    where Flink hands over its own and an equal dealt one and overwrites, the own one is taken.
    Subtasks share one tuple for a union state, and for the same broadcast copy.
    Raises what :func:`plan_redistribution` does.
    """
    plan = plan_redistribution(_counted(old), parallelism)
    return tuple(_gather(plan.modes, map(plan.runs, range(parallelism)), _reader(old)))


def subtask_elements(old: _Lists[T], parallelism: int, subtask: int) -> dict[str, tuple[T, ...]]:
    """The elements of one new subtask, ``redistribute(old, parallelism)[subtask]``, alone.

    To read one subtask's elements from a file, use ``plan_redistribution(...).runs(subtask)``.
    Raises what :func:`plan_redistribution` does, and :class:`InvalidArgumentError` if there is no
    such subtask.
    """
    plan = plan_redistribution(_counted(old), parallelism)
    return next(_gather(plan.modes, [plan.runs(subtask)], _reader(old)))


def _gather(
    modes: Mapping[str, RedistributionMode],
    runs_of_subtasks: Iterable[Mapping[str, tuple[Run, ...]]],
    read: Callable[[str, Run], Iterable[T]],
) -> Iterator[dict[str, tuple[T, ...]]]:
    """Turn the runs of each subtask into elements, building what subtasks share only once."""
    shared: dict[tuple[str, tuple[Run, ...]], tuple[T, ...]] = {}
    for runs_by_name in runs_of_subtasks:
        elements: dict[str, tuple[T, ...]] = {}
        for name, runs in runs_by_name.items():
            # All subtasks have the same runs of a union state: the name says enough.
            key = (name, () if modes[name] is RedistributionMode.UNION else runs)
            got = shared.get(key)
            if got is None:
                got = tuple(chain.from_iterable(read(name, run) for run in runs))
                if modes[name] is not RedistributionMode.SPLIT:
                    shared[key] = got
            elements[name] = got
        yield elements


def _counted(old: _Lists[T]) -> list[dict[str, tuple[_Mode, int]]]:
    """``old`` with the elements counted, once they are known to be sequences."""
    if not _is_list(old) or not all(one is None or isinstance(one, Mapping) for one in old):
        raise InvalidArgumentError(
            "what the old subtasks reported is a list: of each its states by name, None for none"
        )
    for subtask, states in enumerate(old):
        for name, (_, elements) in (states or {}).items():
            if not _is_list(elements):
                raise InvalidArgumentError(
                    f"state {name!r} of old subtask {subtask}: its elements must be a list or "
                    f"tuple, not {type(elements).__name__}"
                )
    return [{n: (mode, len(e)) for n, (mode, e) in (states or {}).items()} for states in old]


def _reader(old: _Lists[T]) -> Callable[[str, Run], Sequence[T]]:
    known = [states or {} for states in old]
    return lambda name, run: known[run.subtask][name][1][run.first : run.stop]


def _collect(
    old: _Counts,
) -> tuple[dict[str, tuple[RedistributionMode, list[Run]]], list[str]]:
    """Per state its mode and lists, and the names of split states in the order Flink meets them."""
    reported: dict[str, tuple[RedistributionMode, list[Run]]] = {}
    split_look_ups = []
    for subtask, states in enumerate(known or {} for known in old):
        for name in stored_order(states):
            mode, count = RedistributionMode(states[name][0]), states[name][1]
            if not is_int(count) or count < 0:
                raise InvalidArgumentError(
                    f"state {name!r} of old subtask {subtask}: {count!r} is not an element count"
                )
            known, lists = reported.setdefault(name, (mode, []))
            if known is not mode:
                raise InvalidArgumentError(
                    f"state {name!r} has two redistribution modes: {known.value} in old subtask "
                    f"{lists[0].subtask}, {mode.value} in old subtask {subtask}"
                )
            lists.append(Run(subtask, 0, count))
            if mode is RedistributionMode.SPLIT:
                split_look_ups.append(name)
    return reported, split_look_ups


def check_parallelism(parallelism: int, what: str = "parallelism") -> int:
    """``parallelism``, if it is one: :class:`InvalidArgumentError` if it is no int in 1..32768."""
    if not is_int(parallelism):
        raise InvalidArgumentError(f"{what} must be an integer, not {parallelism!r}")
    if not MIN_PARALLELISM <= parallelism <= MAX_PARALLELISM:
        raise InvalidArgumentError(
            f"{what} must be in {MIN_PARALLELISM}..{MAX_PARALLELISM}, not {parallelism}"
        )
    return parallelism


def _is_list(value: object) -> bool:
    # A string is a sequence to Python; as elements it is one of them, not many.
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
