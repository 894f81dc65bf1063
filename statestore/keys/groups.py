"""Key groups: their number, the key group of a hash, and the ranges that subtasks own.

The rules follow Flink 2.3's ``KeyGroupRangeAssignment`` and ``KeyGroupRange``. The max
parallelism of a restored job follows ``StateAssignmentOperation``. Invariant I2: for every
parallelism up to max parallelism, the ranges tile ``0 .. max - 1`` in order, none is empty, and
their sizes differ by at most one. ``subtask_of`` and ``range_of`` are inverse. For ``i =
parallelism`` Flink silently returns a range past the end. Here every subtask and key group is
checked, except in :func:`subtask_of_key_group`, the plain rule that the others use.

Balanced ranges are an alternative to Flink's even ranges (``KeyGroupRangeAssignment``) for state
whose key groups differ in size. :func:`balance_ranges` cuts the key groups into contiguous,
nonempty ranges such that the largest range is as small as possible.

Max parallelism can be read as a multiple or a divisor of the stored one, without rewriting. A key's
group is its hash modulo max parallelism. Since ``(h mod k·m) mod m = h mod m``, each of the k·m new
key groups is within one stored key group. If k·m key groups are stored, each of m key groups
consists of whole stored ones. This follows from Flink's rule (``KeyGroupRangeAssignment``),
although Flink itself cannot change the max parallelism of stored state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final, TypeGuard

from statestore.errors import InvalidArgumentError, ParallelismError, Remedy

MIN_PARALLELISM: Final = 1
MAX_PARALLELISM: Final = 1 << 15
"""The largest allowed parallelism and max parallelism (Flink's 1 << 15)."""

DEFAULT_LOWER_BOUND: Final = 128
"""The smallest max parallelism that is derived."""

_AS_MANY_AS_POSSIBLE: Final = 2**31 - 1
_U32: Final = 0xFFFFFFFF


def round_up_to_power_of_two(value: int) -> int:
    """Return the smallest power of two >= ``value``; 0 for 0 and below (Flink's ``MathUtils``)."""
    return 0 if value <= 0 else 1 << (value - 1).bit_length()


def default_max_parallelism(parallelism: int) -> int:
    """Return the max parallelism of a job that configures none.

    It is 1.5 times ``parallelism``, rounded up to a power of two, between 128 and 32768. Raises
    InvalidArgumentError when ``parallelism`` is not in 1..32768.
    """
    _check_bounds("parallelism", parallelism)
    wanted = round_up_to_power_of_two(parallelism + parallelism // 2)
    return min(max(wanted, DEFAULT_LOWER_BOUND), MAX_PARALLELISM)


def effective_max_parallelism(
    stored: int | Sequence[int | None] | None, parallelism: int, configured: int | None = None
) -> int:
    """Return the max parallelism of a job restored at ``parallelism``.

    The rules follow Flink's ``StateAssignmentOperation``.

    ``stored`` has the max parallelism of each operator in the snapshot. None stands for an operator
    without state, which is ignored. (In Flink such an operator can reset the value, an accident of
    its map order that is not copied.) If ``configured`` is None or -1, the value is derived from
    ``parallelism``. A stored value replaces a derived one, but never an explicit one. 2147483647
    means the largest possible value: 32768, explicit.

    Raises InvalidArgumentError when a value is not in 1..32768; ParallelismError when
    ``parallelism`` is above the configured or a stored max, or when an explicit max differs from a
    stored one.
    """
    _check_bounds("parallelism", parallelism)
    derived = configured is None or (type(configured) is int and configured == -1)
    current = default_max_parallelism(parallelism) if derived else _explicit_max(configured)
    if parallelism > current:
        raise ParallelismError(
            f"parallelism {parallelism} is above the configured max parallelism {current}: "
            "lower the parallelism, or raise the max parallelism"
        )
    operators = stored if isinstance(stored, Sequence) else (stored,)
    for maximum in operators:
        if maximum is None:
            continue
        _check_bounds("stored max parallelism", maximum)
        if maximum < parallelism:
            remedy = _multiple(maximum, parallelism)
            more = "" if remedy else ", or change the max parallelism with 'statestore rekey'"
            raise ParallelismError(
                f"parallelism {parallelism} is above the stored max parallelism {maximum}: "
                f"restore at {maximum} or less{more}",
                remedy=remedy,
            )
        if maximum != current and not derived:
            raise ParallelismError(
                f"the state was stored with max parallelism {maximum} but {current} is "
                f"configured: configure {maximum} or remove the setting. To change the stored "
                "value, rewrite all rows of the state with regroup=True, or the "
                "checkpoint with 'statestore rekey'"
            )
        current = maximum
    return current


def _multiple(stored: int, parallelism: int) -> Remedy | None:
    multiple = -(-parallelism // stored) * stored
    if multiple > MAX_PARALLELISM:
        return None
    return Remedy("max_parallelism", multiple, "a multiple can be read without a rewrite")


def mix_hash(key_hash: int) -> int:
    """Return the Murmur3-x86-32 hash of the four bytes of ``key_hash``: 0 .. 2**31 - 1.

    The seed is 0 and the sign is dropped. Any int is taken modulo 2**32. The one input whose hash
    is -2**31 gives 0 (``MathUtils.murmurHash``).
    """
    h = key_hash * 0xCC9E2D51 & _U32
    h = (h << 15 | h >> 17) * 0x1B873593 & _U32
    h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & _U32
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _U32
    h = (h ^ h >> 13) * 0xC2B2AE35 & _U32
    h ^= h >> 16
    if h < 0x80000000:
        return h
    return -h & 0x7FFFFFFF


def key_group_of_hash(key_hash: int, max_parallelism: int) -> int:
    """Return the key group, 0 .. ``max_parallelism`` - 1, of a 32-bit key hash.

    Raises InvalidArgumentError when ``max_parallelism`` is not in 1..32768.
    """
    _check_bounds("max parallelism", max_parallelism)
    return mix_hash(key_hash) % max_parallelism


def subtask_of_key_group(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the subtask that owns ``key_group`` (``computeOperatorIndexForKeyGroup``), unchecked.

    If there are fewer key groups than subtasks, some subtasks own none. :class:`KeyGroupAssignment`
    refuses that, and its ``subtask_of`` is this rule with checks.
    """
    return key_group * parallelism // max_parallelism


def is_int(value: object) -> TypeGuard[int]:
    """Return whether ``value`` is an int and not a bool."""
    # Python's bool is an int, but a bool as a count is always a mistake.
    return isinstance(value, int) and not isinstance(value, bool)


def check_int(name: str, value: object) -> int:
    """Return ``value``; InvalidArgumentError with ``name`` unless it is an int."""
    if not is_int(value):
        raise InvalidArgumentError(f"{name} must be an int, not {value!r}")
    return value


def check_parallelism(parallelism: int, what: str = "parallelism") -> int:
    """Return ``parallelism``; InvalidArgumentError unless it is an int in 1..32768."""
    if not is_int(parallelism):
        raise InvalidArgumentError(f"{what} must be an integer, not {parallelism!r}")
    if not MIN_PARALLELISM <= parallelism <= MAX_PARALLELISM:
        raise InvalidArgumentError(
            f"{what} must be in {MIN_PARALLELISM}..{MAX_PARALLELISM}, not {parallelism}"
        )
    return parallelism


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """The closed range of key groups ``first`` .. ``last``; never empty.

    Raises InvalidArgumentError unless 0 <= first <= last < 32768.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        # A plan creates hundreds of thousands of ranges, so the common case is checked first.
        if type(self.first) is not int or type(self.last) is not int:
            _check_int("first key group", self.first)
            _check_int("last key group", self.last)
        if not 0 <= self.first <= self.last < MAX_PARALLELISM:
            raise InvalidArgumentError(
                f"key-group range {self.first}..{self.last} is not valid: "
                f"0 <= first <= last < {MAX_PARALLELISM} must hold"
            )

    @classmethod
    def every(cls, max_parallelism: int) -> KeyGroupRange:
        """Return all key groups of a state."""
        return cls(0, max_parallelism - 1)

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.first <= key_group <= self.last

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"

    def intersect(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Return the key groups that are in both ranges; None without any."""
        # Most often one range contains the other.
        if other.first <= self.first and self.last <= other.last:
            return self
        if self.first <= other.first and other.last <= self.last:
            return other
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyGroupRange(first, last) if first <= last else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupAssignment:
    """The key groups that each subtask owns at one parallelism (invariant I2).

    Raises InvalidArgumentError when a number is not an int in 1..32768, and ParallelismError when
    ``max_parallelism < parallelism``. The order of the checks is: parallelism, max parallelism,
    both.
    """

    max_parallelism: int
    parallelism: int

    def __post_init__(self) -> None:
        _check_bounds("parallelism", self.parallelism)
        _check_bounds("max parallelism", self.max_parallelism)
        if self.max_parallelism < self.parallelism:
            raise ParallelismError(
                f"max parallelism {self.max_parallelism} is below parallelism "
                f"{self.parallelism}: a subtask would own no key group; lower the "
                "parallelism, or raise the max parallelism"
            )

    def range_of(self, subtask: int) -> KeyGroupRange:
        """Return the key groups of a subtask.

        Args:
            subtask: its number, from 0.

        Returns:
            The range of key groups.

        Raises:
            InvalidArgumentError: unless 0 <= subtask < parallelism.
        """
        _check_index("subtask", subtask, self.parallelism)
        first = (subtask * self.max_parallelism + self.parallelism - 1) // self.parallelism
        last = ((subtask + 1) * self.max_parallelism - 1) // self.parallelism
        return KeyGroupRange(first, last)

    def subtask_of(self, key_group: int) -> int:
        """Return the subtask that owns a key group.

        Args:
            key_group: the key group, from 0.

        Returns:
            The number of the subtask.

        Raises:
            InvalidArgumentError: unless 0 <= key_group < max parallelism.
        """
        _check_index("key group", key_group, self.max_parallelism)
        return subtask_of_key_group(key_group, self.max_parallelism, self.parallelism)

    def ranges(self) -> tuple[KeyGroupRange, ...]:
        """Return the range of every subtask, in order of subtask."""
        return tuple(self.range_of(subtask) for subtask in range(self.parallelism))


def merge_ranges(ranges: Iterable[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    """Merge ranges of key groups into as few ranges as possible, in order."""
    merged: list[KeyGroupRange] = []
    for span in sorted(ranges, key=lambda span: span.first):
        if merged and span.first <= merged[-1].last + 1:
            merged[-1] = KeyGroupRange(merged[-1].first, max(merged[-1].last, span.last))
        else:
            merged.append(span)
    return tuple(merged)


def _explicit_max(configured: int | None) -> int:
    if type(configured) is int and configured == _AS_MANY_AS_POSSIBLE:
        return MAX_PARALLELISM
    return _check_bounds("configured max parallelism", configured)


def _check_int(name: str, value: object) -> int:
    if not is_int(value):
        raise InvalidArgumentError(f"{name} must be an int, not {type(value).__name__} {value!r}")
    return value


def _check_bounds(name: str, value: object) -> int:
    number = value if type(value) is int else _check_int(name, value)
    if not MIN_PARALLELISM <= number <= MAX_PARALLELISM:
        raise InvalidArgumentError(
            f"{name} {number} is out of bounds: it must be in {MIN_PARALLELISM}..{MAX_PARALLELISM}"
        )
    return number


def _check_index(name: str, value: object, end: int) -> None:
    number = _check_int(name, value)
    if not 0 <= number < end:
        raise InvalidArgumentError(f"{name} {number} does not exist: it must be in 0..{end - 1}")


@dataclass(frozen=True)
class RangeAssignment:
    """The owner of each key group: ``stops[i]`` is one more than the last key group of subtask i.

    Raises ParallelismError unless each subtask owns at least one key group.
    """

    stops: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that the ranges tile all key groups."""
        if not self.stops or any(stop <= first for first, stop in pairwise((0, *self.stops))):
            raise ParallelismError(
                f"every subtask must own at least one key group, which {self.stops} does not "
                "satisfy"
            )

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self.stops[-1]

    @property
    def parallelism(self) -> int:
        """The number of subtasks."""
        return len(self.stops)

    def range_of(self, subtask: int) -> KeyGroupRange:
        """Return the key groups of a subtask; ParallelismError if the subtask does not exist."""
        if not 0 <= subtask < self.parallelism:
            raise ParallelismError(
                f"subtask {subtask} does not exist: the subtasks are 0..{self.parallelism - 1}"
            )
        return self.ranges()[subtask]

    def subtask_of(self, key_group: int) -> int:
        """Return the owner of a key group; ParallelismError if the group does not exist."""
        if not 0 <= key_group < self.max_parallelism:
            raise ParallelismError(
                f"key group {key_group} does not exist: the key groups are "
                f"0..{self.max_parallelism - 1}"
            )
        return bisect_right(self.stops, key_group)

    def ranges(self) -> tuple[KeyGroupRange, ...]:
        """Return the key groups of all subtasks, in order."""
        return self._ranges

    @cached_property
    def _ranges(self) -> tuple[KeyGroupRange, ...]:
        return tuple(KeyGroupRange(a, b - 1) for a, b in pairwise((0, *self.stops)))


Assignment = KeyGroupAssignment | RangeAssignment


def balance_ranges(weights: Sequence[int], parallelism: int) -> RangeAssignment:
    """Return contiguous ranges of weighted key groups whose largest sum is as small as possible.

    The function bisects over that sum. A limit is large enough if filling ranges up to it gives at
    most ``parallelism`` ranges. If fewer ranges are needed, the first ones with two key groups are
    split. Raises ParallelismError for more subtasks than key groups, InvalidArgumentError for fewer
    than one subtask.
    """
    if parallelism < 1:
        raise InvalidArgumentError(f"parallelism must be 1 or more, not {parallelism}")
    if parallelism > len(weights):
        raise ParallelismError(
            f"parallelism {parallelism} is above {len(weights)}, the number of key groups: lower "
            "the parallelism"
        )
    upto = [*accumulate(weights, initial=0)]
    low, high = max(max(weights), -(-upto[-1] // parallelism)), upto[-1]
    while low < high:
        middle = (low + high) // 2
        if len(_fill_to_limit(upto, middle, parallelism)) <= parallelism:
            high = middle
        else:
            low = middle + 1
    return RangeAssignment(
        tuple(_divide_ranges(_fill_to_limit(upto, low, parallelism), parallelism))
    )


def _fill_to_limit(upto: Sequence[int], limit: int, most: int) -> list[int]:
    """Return where ranges with sums up to ``limit`` end; stop once there are more than ``most``."""
    stops: list[int] = []
    stop = 0
    while stop < len(upto) - 1 and len(stops) <= most:
        stop = bisect_right(upto, upto[stop] + limit, stop) - 1
        stops.append(stop)
    return stops


def _divide_ranges(stops: list[int], parallelism: int) -> list[int]:
    """Split ranges until there are ``parallelism`` of them; no sum grows."""
    wanted = set(stops)
    spare = (stop for stop in range(1, stops[-1]) if stop not in wanted)
    while len(wanted) < parallelism:
        wanted.add(next(spare))
    return sorted(wanted)


@dataclass(frozen=True)
class Ceiling:
    """A stored max parallelism and the requested one, which is a multiple or a divisor of it."""

    stored: int
    wanted: int

    @property
    def is_raised(self) -> bool:
        """True if a stored key group is divided among several new ones."""
        return self.wanted > self.stored

    def stored_groups(self, own: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        """Return the stored key groups that contain rows of the new key groups ``own``.

        They are ascending, in as few ranges as possible.
        """
        if self.is_raised:
            return self._within(own)
        spans = range(0, self.stored, self.wanted)
        return merge_ranges(
            KeyGroupRange(own.first + offset, own.last + offset) for offset in spans
        )

    def _within(self, own: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        if len(own) >= self.stored:
            return (KeyGroupRange.every(self.stored),)
        first, last = own.first % self.stored, own.last % self.stored
        if first <= last:
            return (KeyGroupRange(first, last),)
        return merge_ranges((KeyGroupRange(0, last), KeyGroupRange(first, self.stored - 1)))


def ceiling_of(stored: int, wanted: int) -> Ceiling | None:
    """Return how to read ``stored`` key groups as ``wanted``; None if the numbers are equal.

    Raises ParallelismError if neither divides the other, InvalidArgumentError if ``wanted`` is out
    of bounds.
    """
    if not 0 < wanted <= MAX_PARALLELISM:
        raise InvalidArgumentError(f"max parallelism must be in 1..{MAX_PARALLELISM}, not {wanted}")
    if wanted == stored:
        return None
    if wanted % stored and stored % wanted:
        divisor = next(n for n in range(stored // 2, 0, -1) if stored % n == 0)
        near = [n for n in (divisor, stored * 2, stored * 4) if n <= MAX_PARALLELISM]
        raise ParallelismError(
            f"stored max parallelism {stored} cannot be read as {wanted} without a rewrite: "
            f"{wanted} is neither a multiple nor a divisor of it (for example "
            f"{', '.join(map(str, near))}). Use 'statestore rekey' for any other value"
        )
    return Ceiling(stored, wanted)
