"""Partitioners: which downstream subtask gets a record, and who is wired to whom.

The channel rules are those of Flink 2.3's ``streaming.runtime.partitioner`` classes; how subtasks
are wired on an edge, and what becomes of records in flight, stands at the end.

A sending subtask has one channel per downstream subtask, or, on a pointwise edge, per subtask that
it feeds (:func:`wiring`). Flink keeps a counter or a generator in each subtask; here the channel is
a function of the record's ``index`` in its source subtask (from 0) or of its ``key``: asking twice
gives one answer. What is random is drawn once, by :meth:`Partitioner.started`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Any, ClassVar, Final

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.flink.redistribution import check_parallelism
from statestore.keys.groups import (
    MAX_PARALLELISM,
    KeyGroupAssignment,
    default_max_parallelism,
    is_int,
    key_group_of_hash,
    subtask_of_key_group,
)
from statestore.keys.hashing import DEFAULT_HASH_SCHEME, check_hash_scheme, key_hash

__all__ = [
    "Broadcast",
    "Custom",
    "Forward",
    "Global",
    "KeyGroup",
    "Partitioner",
    "Rebalance",
    "Rescale",
    "Shuffle",
    "StateMapper",
    "Wiring",
    "check_edge",
    "key_group_channel",
    "old_subtasks",
    "pointwise",
    "wiring",
]


# Wiring: which subtasks an edge connects, and who takes over its records in flight on a rescale.
#
# The wiring of pointwise edges is that of Flink 2.3's ``VertexInputInfoComputationUtils``, the
# old-to-new mapping of channel state that of ``SubtaskStateMapper``. Which partitioner has which of
# them, and the wiring of its edge, stands at the end.


class StateMapper(StrEnum):
    """Which old subtasks' in-flight records a new subtask takes over (``SubtaskStateMapper``).

    With FULL and RANGE several new subtasks take over one old one, and each keeps its own records.
    """

    ROUND_ROBIN = "ROUND_ROBIN"
    ARBITRARY = "ARBITRARY"
    FIRST = "FIRST"
    FULL = "FULL"
    RANGE = "RANGE"
    UNSUPPORTED = "UNSUPPORTED"

    @classmethod
    def _missing_(cls, value: object) -> StateMapper:
        known = ", ".join(cls)
        raise InvalidArgumentError(f"unknown state mapper {value!r}: use one of {known}")


@dataclass(frozen=True, slots=True)
class Wiring:
    """Who feeds whom on one edge, as a value; from :func:`pointwise`, or from
    :func:`wiring` for any edge.

    ``consumes``: per downstream subtask the closed range (first, last) of upstream subtasks.
    ``channels``: per upstream subtask the downstream subtask behind channel 0, 1, ….
    """

    consumes: tuple[tuple[int, int], ...]
    channels: tuple[tuple[int, ...], ...]


def pointwise(up: int, down: int) -> Wiring:
    """The wiring of ``up`` and ``down`` subtasks on a pointwise edge.

    Flink's ``computeVertexInputInfoForPointwise``. Where ``down`` is no multiple of ``up``, channel
    0 is not always the lowest consumer: at 2 to 5, subtask 1 has 4 behind channel 0 and 3 behind 1.
    Raises InvalidArgumentError when a number is not in 1..32768.
    """
    check_edge(up, down)
    if up >= down:
        starts = [subtask * up // down for subtask in range(down + 1)]
        consumes = tuple((starts[d], starts[d + 1] - 1) for d in range(down))
        fed = ((d,) for d in range(down) for _ in range(starts[d], starts[d + 1]))
        return Wiring(consumes, tuple(fed))
    stops = [-(-subtask * down // up) for subtask in range(up + 1)]
    consumes = tuple((u, u) for u in range(up) for _ in range(stops[u], stops[u + 1]))
    own = (range(stops[u], stops[u + 1]) for u in range(up))
    return Wiring(consumes, tuple(_by_channel(each) for each in own))


def old_subtasks(mapper: StateMapper | str, subtask: int, old: int, new: int) -> tuple[int, ...]:
    """The old subtasks, ascending, whose in-flight records new ``subtask`` takes over.

    RANGE counts in 32768 key groups, whatever max parallelism is. InvalidArgumentError when a
    number is not in 1..32768, ParallelismError for UNSUPPORTED (forward, rescale, broadcast),
    InvalidArgumentError for an unknown mapper or subtask.
    """
    mapper = StateMapper(mapper)
    check_parallelism(old, "old parallelism")
    check_parallelism(new, "new parallelism")
    if not is_int(subtask) or not 0 <= subtask < new:
        raise InvalidArgumentError(
            f"there is no subtask {subtask!r}: at parallelism {new} subtasks are 0 to {new - 1}"
        )
    if mapper is StateMapper.UNSUPPORTED:
        raise ParallelismError(
            f"in-flight records of a forward, rescale or broadcast edge cannot go from parallelism "
            f"{old} to {new}: restore from an aligned checkpoint or a savepoint"
        )
    if mapper in (StateMapper.FULL, StateMapper.FIRST):
        return tuple(range(old)) if mapper is StateMapper.FULL or subtask == 0 else ()
    if mapper is StateMapper.RANGE:
        before, after = (
            KeyGroupAssignment(max_parallelism=MAX_PARALLELISM, parallelism=p) for p in (old, new)
        )
        own = after.range_of(subtask)
        return tuple(range(before.subtask_of(own.first), before.subtask_of(own.last) + 1))
    return tuple(range(subtask, old, new))


def check_edge(up: int, down: int) -> None:
    """Raise InvalidArgumentError, naming the side, when a parallelism is not in 1..32768."""
    check_parallelism(up, "upstream parallelism")
    check_parallelism(down, "downstream parallelism")


def _by_channel(consumers: range) -> tuple[int, ...]:
    """Subtask d is behind channel d modulo the number of consumers."""
    return tuple(sorted(consumers, key=lambda d: d % len(consumers)))


_U64: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Partitioner:
    """What all partitioners share. ``str()`` is the name that Flink prints, such as ``HASH``.

    ``is_pointwise``: a sending subtask has channels to some downstream subtasks only.
    ``receiving`` and ``sending``: how the channel state of either side is mapped on a rescale.
    """

    name: ClassVar[str]
    is_pointwise: ClassVar[bool] = False
    receiving: ClassVar[StateMapper] = StateMapper.UNSUPPORTED
    sending: ClassVar[StateMapper] = StateMapper.ARBITRARY

    def __str__(self) -> str:
        return self.name

    def channel(self, channels: int, *, index: int = 0, key: Any = None) -> int:
        """The channel, 0 .. ``channels`` - 1, of a record.

        ``index`` is its place in its source subtask; ``key`` its key, a tuple for several columns.
        Either is looked at only where the rule needs it. InvalidArgumentError when ``channels``
        is not in 1..32768, for an index below 0, for ``Broadcast``, for a
        random start that was not drawn (:meth:`started`) and for a custom function that answers
        with no channel, and what :func:`statestore.keys.hashing.key_hash` raises for a key.
        """
        check_parallelism(channels, "the number of channels")
        if not is_int(index) or index < 0:
            raise InvalidArgumentError(f"a record's index must be an integer >= 0, not {index!r}")
        return self._channel(channels, index, key)

    def channels(self, channels: int, *, index: int = 0, key: Any = None) -> tuple[int, ...]:
        """The channels of a record: one, but for ``Broadcast`` all. Raises as :meth:`channel`."""
        return (self.channel(channels, index=index, key=key),)

    def started(self, channels: int, generator: Random | None = None) -> Partitioner:
        """This partitioner with what Flink draws at set-up drawn; itself when nothing is random.

        Every source subtask draws for itself. Raises as :meth:`channel`.
        """
        check_parallelism(channels, "the number of channels")
        return self._started(channels, generator or Random())

    def _channel(self, channels: int, index: int, key: Any) -> int:
        raise NotImplementedError

    def _started(self, channels: int, generator: Random) -> Partitioner:
        return self


@dataclass(frozen=True, slots=True)
class Global(Partitioner):
    """All records to channel 0 (``GlobalPartitioner``)."""

    name: ClassVar[str] = "GLOBAL"
    receiving: ClassVar[StateMapper] = StateMapper.FIRST

    def _channel(self, channels: int, index: int, key: Any) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Shuffle(Partitioner):
    """Each record to a random channel, all alike (``ShufflePartitioner``).

    Flink's generator has no seed. With one, a signed 64-bit integer, the channel is a function of
    it and of the record's index; which function is no part of the contract.
    """

    seed: int | None = None
    name: ClassVar[str] = "SHUFFLE"
    receiving: ClassVar[StateMapper] = StateMapper.ROUND_ROBIN

    def __post_init__(self) -> None:
        if self.seed is not None and (not is_int(self.seed) or not -(2**63) <= self.seed < 2**63):
            raise InvalidArgumentError(f"a seed is a signed 64-bit integer, not {self.seed!r}")

    def _channel(self, channels: int, index: int, key: Any) -> int:
        if self.seed is None:
            raise _undrawn("the seed of Shuffle")
        # SplitMix64: its state is a counter, so any index has its number without those before it.
        z = self.seed + (index + 1) * 0x9E3779B97F4A7C15 & _U64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _U64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _U64
        return (z ^ z >> 31) * channels >> 64

    def _started(self, channels: int, generator: Random) -> Partitioner:
        return self if self.seed is not None else replace(self, seed=generator.getrandbits(63))


@dataclass(frozen=True, slots=True)
class Rebalance(Partitioner):
    """Round robin over all channels (``RebalancePartitioner``).

    ``first``, below the number of channels, is the random start; the first record goes to the
    channel *after* it.
    """

    first: int | None = None
    name: ClassVar[str] = "REBALANCE"
    receiving: ClassVar[StateMapper] = StateMapper.ROUND_ROBIN

    def start(self, channels: int) -> int | None:
        """``first``; InvalidArgumentError unless it is None or in 0 .. ``channels`` - 1."""
        if self.first is not None and (not is_int(self.first) or not 0 <= self.first < channels):
            allowed = f"in 0..{channels - 1} with {channels} channels"
            raise InvalidArgumentError(f"first of Rebalance must be {allowed}, not {self.first!r}")
        return self.first

    def _channel(self, channels: int, index: int, key: Any) -> int:
        first = self.start(channels)
        if first is None:
            raise _undrawn("first of Rebalance")
        return (first + index + 1) % channels

    def _started(self, channels: int, generator: Random) -> Partitioner:
        drawn = self.start(channels)
        return self if drawn is not None else replace(self, first=generator.randrange(channels))


@dataclass(frozen=True, slots=True)
class Rescale(Partitioner):
    """Round robin over the subtask's own consumers, from channel 0 (``RescalePartitioner``)."""

    name: ClassVar[str] = "RESCALE"
    is_pointwise: ClassVar[bool] = True
    sending: ClassVar[StateMapper] = StateMapper.UNSUPPORTED

    def _channel(self, channels: int, index: int, key: Any) -> int:
        return index % channels


@dataclass(frozen=True, slots=True)
class Broadcast(Partitioner):
    """Each record to every channel (``BroadcastPartitioner``); it has no single channel."""

    name: ClassVar[str] = "BROADCAST"
    sending: ClassVar[StateMapper] = StateMapper.UNSUPPORTED

    def channels(self, channels: int, *, index: int = 0, key: Any = None) -> tuple[int, ...]:
        """All channels, in order; InvalidArgumentError when ``channels`` is not in 1..32768."""
        return tuple(range(check_parallelism(channels, "the number of channels")))

    def _channel(self, channels: int, index: int, key: Any) -> int:
        raise InvalidArgumentError(
            f"Broadcast sends a record to all {channels} channels, not to one: ask for channels()"
        )


@dataclass(frozen=True, slots=True)
class Forward(Partitioner):
    """Each subtask to the one with its number (``ForwardPartitioner``); equal parallelism only."""

    name: ClassVar[str] = "FORWARD"
    is_pointwise: ClassVar[bool] = True
    sending: ClassVar[StateMapper] = StateMapper.UNSUPPORTED

    def _channel(self, channels: int, index: int, key: Any) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroup(Partitioner):
    """To the subtask that owns the key's group (``KeyGroupStreamPartitioner``).

    ``key`` names the key columns of a table. ``max_parallelism`` is the consumer's, None: derived
    from its parallelism. Below the number of channels, as in Flink, some get nothing.
    ``key_types`` names, per key column, the type that is hashed where it is not its own. Raises
    InvalidArgumentError when it is not in 1..32768, or for a wrong key or scheme.
    """

    key: str | tuple[str, ...]
    max_parallelism: int | None = None
    hash_scheme: str = DEFAULT_HASH_SCHEME
    key_types: str | tuple[str | None, ...] | None = None
    name: ClassVar[str] = "HASH"
    receiving: ClassVar[StateMapper] = StateMapper.RANGE

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", column_names(self.key))
        if not self.key:
            raise InvalidArgumentError("KeyGroup needs the names of the key columns: key='id'")
        if self.max_parallelism is not None:
            check_parallelism(self.max_parallelism, "max parallelism")
        check_hash_scheme(self.hash_scheme)
        if self.key_types is not None:
            types = (self.key_types,) if isinstance(self.key_types, str) else tuple(self.key_types)
            object.__setattr__(self, "key_types", types)
            if len(types) != len(self.key):
                raise InvalidArgumentError(
                    f"KeyGroup has {len(self.key)} key columns and {len(types)} key types: give "
                    "one each"
                )

    def max_at(self, parallelism: int) -> int:
        """The max parallelism of a consumer with this parallelism: the given or the derived one."""
        derived = default_max_parallelism(parallelism)
        return derived if self.max_parallelism is None else self.max_parallelism

    def _channel(self, channels: int, index: int, key: Any) -> int:
        types = self.key_types
        key_type = types[0] if types is not None and len(types) == 1 else types
        hashed = key_hash(key, key_type=key_type, hash_scheme=self.hash_scheme)
        return key_group_channel(hashed, self.max_at(channels), channels)


@dataclass(frozen=True, slots=True)
class Custom(Partitioner):
    """To the channel that ``function(key, channels)`` answers (``CustomPartitionerWrapper``).

    On a DataFrame the function takes and returns a Spark Column, and ``key`` names its column, or
    several that become one struct.
    """

    function: Callable[[Any, int], Any]
    key: str | tuple[str, ...] = ()
    name: ClassVar[str] = "CUSTOM"
    receiving: ClassVar[StateMapper] = StateMapper.FULL

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgumentError(f"Custom needs a function, not {self.function!r}")
        object.__setattr__(self, "key", column_names(self.key))

    def _channel(self, channels: int, index: int, key: Any) -> int:
        answer = self.function(key, channels)
        if not is_int(answer) or not 0 <= answer < channels:
            raise InvalidArgumentError(
                f"the custom partitioner answered {answer!r} for key {key!r}: with {channels} "
                f"channels it must answer an integer in 0..{channels - 1}"
            )
        return int(answer)


def column_names(columns: str | Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple; one name may stand alone."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def key_group_channel(hashed: int, max_parallelism: int, channels: int) -> int:
    """The channel of a 32-bit key hash (``KeyGroupRangeAssignment.assignKeyToParallelOperator``).

    Raises InvalidArgumentError when either number is not in 1..32768.
    """
    check_parallelism(channels, "the number of channels")
    group = key_group_of_hash(hashed, max_parallelism)
    # Not KeyGroupAssignment.subtask_of: there may be fewer key groups than channels.
    return subtask_of_key_group(group, max_parallelism, channels)


def wiring(partitioner: Partitioner, up: int, down: int) -> Wiring:
    """The wiring of an edge with this partitioner: pointwise, or everybody to everybody.

    Raises InvalidArgumentError when a number is not in 1..32768, ParallelismError for ``Forward``
    when they differ.
    """
    check_edge(up, down)
    if isinstance(partitioner, Forward) and up != down:
        raise ParallelismError(
            f"Forward cannot connect parallelism {up} to {down}: it needs equal parallelism; use "
            "Rescale or Rebalance"
        )
    if partitioner.is_pointwise:
        return pointwise(up, down)
    return Wiring(((0, up - 1),) * down, (tuple(range(down)),) * up)


def _undrawn(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what} is not drawn yet: give it, or call started()")
