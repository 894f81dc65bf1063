"""Partitioners: each record's downstream subtask, the wiring of edges, and in-flight records.

It follows Flink 2.3. The channel rules are those of the ``streaming.runtime.partitioner`` classes.
:func:`wiring` returns the subtasks that an edge connects. For pointwise edges it follows
``VertexInputInfoComputationUtils``. :func:`old_subtasks` returns the old subtasks whose in-flight
records a new subtask takes over on a rescale. It follows ``SubtaskStateMapper``. Each partitioner
class names its mappers and its kind of wiring.

A sending subtask has one channel per downstream subtask, or, on a pointwise edge, one per subtask
that it feeds (:func:`wiring`). In Flink each subtask has a counter or a random generator. Here the
channel is a function of the record's ``index`` in its source subtask (from 0) or of its ``key``, so
the same question always has the same answer. Random values are drawn once, by
:meth:`Partitioner.started`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Any, ClassVar, Final

from statestore.errors import InvalidArgumentError, ParallelismError, unknown_choice
from statestore.keys.groups import (
    MAX_PARALLELISM,
    KeyGroupAssignment,
    check_parallelism,
    default_max_parallelism,
    is_int,
    key_group_of_hash,
    subtask_of_key_group,
)
from statestore.keys.hashing import key_hash
from statestore.keys.key_types import DEFAULT_HASH_SCHEME, check_hash_scheme


class StateMapper(StrEnum):
    """Which old subtasks' in-flight records a new subtask takes over (``SubtaskStateMapper``).

    With FULL and RANGE, several new subtasks read the records of the same old subtask, and each
    keeps only its own records.
    """

    ROUND_ROBIN = "ROUND_ROBIN"
    ARBITRARY = "ARBITRARY"
    FIRST = "FIRST"
    FULL = "FULL"
    RANGE = "RANGE"
    UNSUPPORTED = "UNSUPPORTED"

    @classmethod
    def _missing_(cls, value: object) -> StateMapper:
        raise unknown_choice("state mapper", value, cls)


@dataclass(frozen=True, slots=True)
class Wiring:
    """The connections between the subtasks of an edge; see :func:`pointwise` and :func:`wiring`.

    ``consumes`` has, per downstream subtask, the closed range (first, last) of upstream subtasks.
    ``channels`` has, per upstream subtask, the downstream subtask of channel 0, 1, ….
    """

    consumes: tuple[tuple[int, int], ...]
    channels: tuple[tuple[int, ...], ...]


def pointwise(up: int, down: int) -> Wiring:
    """Return the wiring of ``up`` and ``down`` subtasks on a pointwise edge.

    It follows Flink's ``computeVertexInputInfoForPointwise``. If ``down`` is not a multiple of
    ``up``, channel 0 is not always the lowest consumer: with 2 and 5 subtasks, channel 0 of subtask
    1 leads to subtask 4, and channel 1 to subtask 3. Raises InvalidArgumentError if a number is not
    in 1..32768.
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
    """Return the old subtasks, ascending, whose in-flight records new ``subtask`` takes over.

    RANGE always uses 32768 key groups, regardless of max parallelism. Raises InvalidArgumentError
    if a number is not in 1..32768, ParallelismError for UNSUPPORTED (forward, rescale, broadcast),
    InvalidArgumentError for an unknown mapper or subtask.
    """
    mapper = StateMapper(mapper)
    check_parallelism(old, "old parallelism")
    check_parallelism(new, "new parallelism")
    if not is_int(subtask) or not 0 <= subtask < new:
        raise InvalidArgumentError(
            f"subtask {subtask!r} does not exist: at parallelism {new} the subtasks are 0 to "
            f"{new - 1}"
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
    """Raise InvalidArgumentError, naming the side, if a parallelism is not in 1..32768."""
    check_parallelism(up, "upstream parallelism")
    check_parallelism(down, "downstream parallelism")


def _by_channel(consumers: range) -> tuple[int, ...]:
    """Sort consumers by channel: subtask d has channel d modulo the number of consumers."""
    return tuple(sorted(consumers, key=lambda d: d % len(consumers)))


_U64: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Partitioner:
    """The base class of all partitioners. ``str()`` returns Flink's name, such as ``HASH``.

    With ``is_pointwise`` a sending subtask has channels to only some downstream subtasks.
    ``receiving`` and ``sending`` are the mappers of the channel state of either side on a rescale.
    """

    name: ClassVar[str]
    is_pointwise: ClassVar[bool] = False
    receiving: ClassVar[StateMapper] = StateMapper.UNSUPPORTED
    sending: ClassVar[StateMapper] = StateMapper.ARBITRARY

    def __str__(self) -> str:
        return self.name

    def channel(self, channels: int, *, index: int = 0, key: Any = None) -> int:
        """Return the channel, 0 .. ``channels`` - 1, of a record.

        ``index`` is its index in its source subtask; ``key`` is its key, a tuple for several
        columns. Each is used only by the partitioners that need it. Raises InvalidArgumentError if
        ``channels`` is not in 1..32768, for an index below 0, and for ``Broadcast``. It is also
        raised for a random start that was not drawn (:meth:`started`), and for a custom function
        that returns an invalid channel. Also raises the errors of
        :func:`statestore.keys.hashing.key_hash` for a key.
        """
        check_parallelism(channels, "the number of channels")
        if not is_int(index) or index < 0:
            raise InvalidArgumentError(f"a record's index must be an integer >= 0, not {index!r}")
        return self._channel(channels, index, key)

    def channels(self, channels: int, *, index: int = 0, key: Any = None) -> tuple[int, ...]:
        """Return the channels of a record: one, or all for ``Broadcast``; see :meth:`channel`."""
        return (self.channel(channels, index=index, key=key),)

    def started(self, channels: int, generator: Random | None = None) -> Partitioner:
        """Return a copy with drawn random values, or itself if it needs none.

        Every source subtask draws its own values. Raises the errors of :meth:`channel`.
        """
        check_parallelism(channels, "the number of channels")
        return self._with_random_start(channels, generator or Random())

    def _channel(self, channels: int, index: int, key: Any) -> int:
        raise NotImplementedError

    def _with_random_start(self, channels: int, generator: Random) -> Partitioner:
        return self


@dataclass(frozen=True, slots=True)
class Global(Partitioner):
    """Sends all records to channel 0 (``GlobalPartitioner``)."""

    name: ClassVar[str] = "GLOBAL"
    receiving: ClassVar[StateMapper] = StateMapper.FIRST

    def _channel(self, channels: int, index: int, key: Any) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Shuffle(Partitioner):
    """Sends each record to a uniformly random channel (``ShufflePartitioner``).

    Flink's generator has no seed. If a seed is given, a signed 64-bit integer, the channel is a
    function of the seed and of the record's index. This function may change in a later release.
    """

    seed: int | None = None
    name: ClassVar[str] = "SHUFFLE"
    receiving: ClassVar[StateMapper] = StateMapper.ROUND_ROBIN

    def __post_init__(self) -> None:
        if self.seed is not None and (not is_int(self.seed) or not -(2**63) <= self.seed < 2**63):
            raise InvalidArgumentError(f"a seed must be a signed 64-bit integer, not {self.seed!r}")

    def _channel(self, channels: int, index: int, key: Any) -> int:
        if self.seed is None:
            raise _undrawn_error("the seed of Shuffle")
        # SplitMix64: its state is a counter, so the number for any index can be computed directly.
        z = self.seed + (index + 1) * 0x9E3779B97F4A7C15 & _U64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _U64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _U64
        return (z ^ z >> 31) * channels >> 64

    def _with_random_start(self, channels: int, generator: Random) -> Partitioner:
        return self if self.seed is not None else replace(self, seed=generator.getrandbits(63))


@dataclass(frozen=True, slots=True)
class Rebalance(Partitioner):
    """Distributes records round robin over all channels (``RebalancePartitioner``).

    ``first``, below the number of channels, is the random start. The first record goes to the
    channel *after* it.
    """

    first: int | None = None
    name: ClassVar[str] = "REBALANCE"
    receiving: ClassVar[StateMapper] = StateMapper.ROUND_ROBIN

    def start(self, channels: int) -> int | None:
        """Return ``first``; InvalidArgumentError unless it is None or in 0 .. ``channels`` - 1."""
        if self.first is not None and (not is_int(self.first) or not 0 <= self.first < channels):
            allowed = f"in 0..{channels - 1} with {channels} channels"
            raise InvalidArgumentError(f"first of Rebalance must be {allowed}, not {self.first!r}")
        return self.first

    def _channel(self, channels: int, index: int, key: Any) -> int:
        first = self.start(channels)
        if first is None:
            raise _undrawn_error("first of Rebalance")
        return (first + index + 1) % channels

    def _with_random_start(self, channels: int, generator: Random) -> Partitioner:
        drawn = self.start(channels)
        return self if drawn is not None else replace(self, first=generator.randrange(channels))


@dataclass(frozen=True, slots=True)
class Rescale(Partitioner):
    """Distributes records round robin over its own consumers, from channel 0."""

    name: ClassVar[str] = "RESCALE"
    is_pointwise: ClassVar[bool] = True
    sending: ClassVar[StateMapper] = StateMapper.UNSUPPORTED

    def _channel(self, channels: int, index: int, key: Any) -> int:
        return index % channels


@dataclass(frozen=True, slots=True)
class Broadcast(Partitioner):
    """Sends each record to every channel (``BroadcastPartitioner``); it has no single channel."""

    name: ClassVar[str] = "BROADCAST"
    sending: ClassVar[StateMapper] = StateMapper.UNSUPPORTED

    def channels(self, channels: int, *, index: int = 0, key: Any = None) -> tuple[int, ...]:
        """Return all channels; InvalidArgumentError if ``channels`` is not in 1..32768."""
        return tuple(range(check_parallelism(channels, "the number of channels")))

    def _channel(self, channels: int, index: int, key: Any) -> int:
        raise InvalidArgumentError(
            f"Broadcast sends each record to all {channels} channels: call channels() instead"
        )


@dataclass(frozen=True, slots=True)
class Forward(Partitioner):
    """Connects subtasks with equal numbers (``ForwardPartitioner``); requires equal parallelism."""

    name: ClassVar[str] = "FORWARD"
    is_pointwise: ClassVar[bool] = True
    sending: ClassVar[StateMapper] = StateMapper.UNSUPPORTED

    def _channel(self, channels: int, index: int, key: Any) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroup(Partitioner):
    """Sends a record to the subtask that owns its key's key group (``KeyGroupStreamPartitioner``).

    ``key`` names the key columns of a table. ``max_parallelism`` is the consumer's; None means that
    it is derived from the consumer's parallelism. If it is below the number of channels, some
    channels get nothing, as in Flink. ``key_types`` names, per key column, the hashed type if it
    differs from the column's own. Raises InvalidArgumentError if ``max_parallelism`` is not in
    1..32768, or for an invalid key or scheme.
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
        """Return the given max parallelism, or the one derived from a parallelism."""
        derived = default_max_parallelism(parallelism)
        return derived if self.max_parallelism is None else self.max_parallelism

    def _channel(self, channels: int, index: int, key: Any) -> int:
        types = self.key_types
        key_type = types[0] if types is not None and len(types) == 1 else types
        hashed = key_hash(key, key_type=key_type, hash_scheme=self.hash_scheme)
        return key_group_channel(hashed, self.max_at(channels), channels)


@dataclass(frozen=True, slots=True)
class Custom(Partitioner):
    """Sends a record to the channel that ``function(key, channels)`` returns.

    It follows ``CustomPartitionerWrapper``. On a DataFrame the function takes and returns a Spark
    Column. ``key`` names its column, or several columns that become one struct.
    """

    function: Callable[[Any, int], Any]
    key: str | tuple[str, ...] = ()
    name: ClassVar[str] = "CUSTOM"
    receiving: ClassVar[StateMapper] = StateMapper.FULL

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgumentError(f"Custom requires a function, not {self.function!r}")
        object.__setattr__(self, "key", column_names(self.key))

    def _channel(self, channels: int, index: int, key: Any) -> int:
        answer = self.function(key, channels)
        if not is_int(answer) or not 0 <= answer < channels:
            raise InvalidArgumentError(
                f"the custom partitioner returned {answer!r} for key {key!r}: with {channels} "
                f"channels it must return an integer in 0..{channels - 1}"
            )
        return int(answer)


def column_names(columns: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names as a tuple; a single name may be a string."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def key_group_channel(hashed: int, max_parallelism: int, channels: int) -> int:
    """Return the channel of a 32-bit key hash.

    It follows ``KeyGroupRangeAssignment.assignKeyToParallelOperator``. Raises InvalidArgumentError
    if either number is not in 1..32768.
    """
    check_parallelism(channels, "the number of channels")
    group = key_group_of_hash(hashed, max_parallelism)
    # KeyGroupAssignment.subtask_of is not used, because there may be fewer key groups than
    # channels.
    return subtask_of_key_group(group, max_parallelism, channels)


def wiring(partitioner: Partitioner, up: int, down: int) -> Wiring:
    """Return the wiring of an edge with this partitioner: pointwise, or all-to-all.

    Raises InvalidArgumentError if a number is not in 1..32768, ParallelismError for ``Forward`` if
    the two numbers differ.
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


def _undrawn_error(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what} has no value yet: set it, or call started()")
